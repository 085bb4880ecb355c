/* SPDX-License-Identifier: Apache-2.0
 * Whom a request asks for. A web page of somebody else's can give its own name this host's address (DNS rebinding):
 * then a browser sends us that page's requests, and lets it read the answers. But it also says the name. */
#pragma once

#include "base/base.h"

/* host: as a request has it, with a port or without. True: an address, "localhost", or one of names, which are
 * separated by commas; NULL: none. */
bool sml_http_host_is_ours(const char *host, const char *names);

/* Whether the text is such a list. */
bool sml_http_host_names_are_valid(const char *names);
