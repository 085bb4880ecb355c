/* SPDX-License-Identifier: Apache-2.0
 * The lanes of a packet, from one list. -DLANES=32, 64, .. 256: they lie in headers of 32 (DPDK's offsets inside one
 * are 8 bits wide). P4 for targets has no loops, so the preprocessor repeats: EACH_LANE(X, block) is X(block, 0) ..
 * X(block, 31), EACH_BLOCK(Y) is Y(0) .. Y(LANES / 32 - 1). */
#ifndef LANES
#define LANES 32
#endif
#ifndef SLOTS
#define SLOTS 2048 /* of the whole switch */
#endif
#define CELLS (2 * SLOTS)
#ifndef CURSORS
#define CURSORS 1024 /* lanes of all jobs */
#endif

#define EACH_LANE(X, b) \
  X(b, 0) X(b, 1) X(b, 2) X(b, 3) X(b, 4) X(b, 5) X(b, 6) X(b, 7) \
  X(b, 8) X(b, 9) X(b, 10) X(b, 11) X(b, 12) X(b, 13) X(b, 14) X(b, 15) \
  X(b, 16) X(b, 17) X(b, 18) X(b, 19) X(b, 20) X(b, 21) X(b, 22) X(b, 23) \
  X(b, 24) X(b, 25) X(b, 26) X(b, 27) X(b, 28) X(b, 29) X(b, 30) X(b, 31)

#if LANES == 32
#define EACH_BLOCK(Y) Y(0)
#elif LANES == 64
#define EACH_BLOCK(Y) Y(0) Y(1)
#elif LANES == 96
#define EACH_BLOCK(Y) Y(0) Y(1) Y(2)
#elif LANES == 128
#define EACH_BLOCK(Y) Y(0) Y(1) Y(2) Y(3)
#elif LANES == 160
#define EACH_BLOCK(Y) Y(0) Y(1) Y(2) Y(3) Y(4)
#elif LANES == 192
#define EACH_BLOCK(Y) Y(0) Y(1) Y(2) Y(3) Y(4) Y(5)
#elif LANES == 224
#define EACH_BLOCK(Y) Y(0) Y(1) Y(2) Y(3) Y(4) Y(5) Y(6)
#elif LANES == 256
#define EACH_BLOCK(Y) Y(0) Y(1) Y(2) Y(3) Y(4) Y(5) Y(6) Y(7)
#else
#error "LANES is 32, 64, .. 256"
#endif
