/* SPDX-License-Identifier: Apache-2.0
 * A job of one rank: its input's bits are the result, or of LAND and LOR whether they are 0. */
#pragma once

#include "method/method.h"

extern const struct sml_method_ops sml_alone;
