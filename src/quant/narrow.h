/* SPDX-License-Identifier: Apache-2.0
 * Updates of 28 bits a lane (docs/PROTOCOL.md rules R66 to R69). From 5 ranks on a rank's share of a float sum in
 * 32-bit lanes is below 2^27, so four of each lane's upper five bits say nothing. The lanes are taken as eight equal
 * rows: the 28 bits of the last row's lanes take these places in the other seven rows, and the last row is left out.
 * Rows, and not neighbours, let plain vector code do many columns at once. */
#pragma once

#include "base/base.h"

/* Fewer have larger shares. */
#define SML_NARROW_MIN_RANKS 5u
#define SML_NARROW_ROWS 8u

/* lanes: num_lanes (a multiple of SML_NARROW_ROWS) big-endian int32 in -2^27 .. 2^27 - 1, of others the lower 28 bits.
 * out: 7/8 as many bytes. They may be the same memory. */
void sml_narrow_lanes(void *out, const void *lanes, size_t num_lanes);
/* The lanes again, with their signs. No overlap. */
void sml_widen_lanes(void *lanes, const void *narrow, size_t num_lanes);
