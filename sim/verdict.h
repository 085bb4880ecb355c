/* SPDX-License-Identifier: Apache-2.0
 * What checkers found. The first finding of a run ends it. */
#pragma once

#include "base/base.h"

void sim_verdict_reset(void);
/* checker: "results", "wire", "failure", "liveness", "leaks", "internal". One sentence. */
void sim_fail(const char *checker, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool sim_has_failed(void);
const char *sim_verdict(void); /* "checker: sentence", or "" */
