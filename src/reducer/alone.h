/* SPDX-License-Identifier: Apache-2.0
 * A job of one rank: its sum and its average are its input's bits. */
#ifndef SML_REDUCER_ALONE_H
#define SML_REDUCER_ALONE_H

#include "reducer/reducer.h"

extern const struct sml_reducer_ops sml_alone;

#endif
