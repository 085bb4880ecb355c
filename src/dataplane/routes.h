/* SPDX-License-Identifier: Apache-2.0
 * Where hosts are: entries of "l2", and of a program that tells us of hosts (jobs.h: tells_hosts) entries of "host".
 * Such a program passes on only frames of hosts that have one for the port by which they came; any other one becomes a
 * datagram to this daemon (SML_PACKET_SWITCH_HEARD). So what is flooded is of a host that is known, by its own port,
 * and a frame that comes back by another one goes round no further. */
#pragma once

#include "dataplane/jobs.h"

/* NULL: there is no room. A new one is free until it has users, or is learned. */
struct sml_switch_route *sml_routes_find(struct sml_switch_jobs *jobs, uint64_t mac);
void sml_routes_set(struct sml_switch_jobs *jobs, struct sml_switch_route *r, uint16_t port);
/* It has no users any more. */
void sml_routes_release(struct sml_switch_jobs *jobs, struct sml_switch_route *r);
/* The switch is emptied. */
void sml_routes_forget(struct sml_switch_jobs *jobs);

/* The host was heard at a port where it is not known. A new one is learned. One that is known elsewhere is where it was
 * if it is heard there again; then the other port leads back to this switch, or somebody lies there: the port is shut
 * for floods and for what could be learned there, and why_out has a sentence. If it is heard only by the other port,
 * for about a second, it has moved. Ranks of running jobs move by HELLO alone, and their ports are never shut. */
void sml_routes_hear(struct sml_switch_jobs *jobs, uint64_t mac, uint16_t port, uint64_t now_ns, char *why_out,
                     size_t why_bytes);
