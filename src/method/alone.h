/* SPDX-License-Identifier: Apache-2.0
 * A job of one rank: its sum and its average are its input's bits. */
#ifndef SML_METHOD_ALONE_H
#define SML_METHOD_ALONE_H

#include "method/method.h"

extern const struct sml_method_ops sml_alone;

#endif
