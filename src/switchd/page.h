/* SPDX-License-Identifier: Apache-2.0
 * page.html, as the build puts it into the daemon. */
#pragma once

#include <stddef.h>

extern const unsigned char sml_page[];
extern const size_t sml_page_bytes;
extern const char sml_page_policy[]; /* its Content-Security-Policy */
