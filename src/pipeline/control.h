/* SPDX-License-Identifier: Apache-2.0
 * The control socket of the software switch: stream, in the file system, for its owner only.
 *
 * A request is lines of text and ends with the line "."; the answer is one line: "ok" and the numbers asked for, or
 * "error" and a sentence. Numbers are decimal, or hexadecimal with 0x.
 *   reset                          everything is as after the start
 *   ports                          answers: number of devices
 *   born                           answers: a number of this run of the program
 *   add TABLE ENTRY                ENTRY in the words of DPDK's table files: match ... action ...
 *   remove TABLE ENTRY             without its action
 *   write REGISTER FIRST END VALUE
 *   read REGISTER FIRST END        answers: the values
 *   cpu PORT IP UDP_PORT VOUCHER   where the control plane is: HELLOs to it are marked (frames.h)
 *   member JOB PORT MAC IP UDP_PORT  one who gets the job's results
 *   nobody JOB                     gets them any more
 * Entries of a request count all together, at its end, or none of them, after an error. */
#pragma once

#include "base/base.h"

struct sml_soft_switch;
struct sml_control;

/* Also where another one's socket lies that has no owner any more. NULL: a sentence on stderr. */
struct sml_control *sml_control_open(const char *path, struct sml_soft_switch *sw);
void sml_control_close(struct sml_control *c);
/* Does what has been asked for, after waiting for that for wait_ns. False: the switch cannot go on; a sentence on
 * stderr. */
bool sml_control_serve(struct sml_control *c, uint64_t wait_ns);
