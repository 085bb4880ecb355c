/* SPDX-License-Identifier: Apache-2.0
 * A control connection to an aggregator, one message after the other (docs/PROTOCOL.md "Control connection"), for
 * commands that ask. Every wait ends at the deadline. */
#pragma once

#include "base/clock.h"
#include "base/siphash.h"
#include "ctl/channel.h"
#include "netio/netio.h"

enum sml_trouble {
  SML_TROUBLE_NONE,
  SML_TROUBLE_SYSTEM,      /* this machine's: no socket, no random numbers */
  SML_TROUBLE_UNREACHABLE, /* no connection; system_error says why, ETIMEDOUT: no answer */
  SML_TROUBLE_SILENT,      /* connected, but no answer in time */
  SML_TROUBLE_CLOSED,
  SML_TROUBLE_VERSION,  /* another version of the control protocol; peer_version, 0: not known */
  SML_TROUBLE_STRANGER, /* what answers is no switchmld, or makes no sense */
  SML_TROUBLE_KEY,      /* its MAC is wrong */
  SML_TROUBLE_REFUSED,  /* message is the REFUSE */
};

struct sml_exchange {
  const char *text; /* the address as it was given, for sentences */
  struct sml_channel channel;
  int fd;
  uint64_t deadline_ns;
  struct sml_ctl_message message; /* the last that was heard */
  enum sml_trouble trouble;
  int system_error;
  uint16_t peer_version;
  char error[512]; /* a sentence */
  size_t in_bytes;
  uint8_t in[SML_CHANNEL_MAX_FRAME_BYTES];
};

/* Connects. False, like below: trouble and a sentence are set. To be closed in any case. */
bool sml_exchange_open(struct sml_exchange *x, const char *text, const struct sml_addr *addr, uint64_t deadline_ns);
void sml_exchange_close(struct sml_exchange *x);
bool sml_exchange_say(struct sml_exchange *x, const struct sml_ctl_message *message);
/* The next message into x->message; a REFUSE is trouble. key_name: for a sentence about a wrong MAC. */
bool sml_exchange_hear(struct sml_exchange *x, const char *key_name);
/* x->message is the CHALLENGE to what was said with that nonce: from here on each frame has a MAC. */
bool sml_exchange_prove(struct sml_exchange *x, const struct sml_key *key, const char *key_name,
                        const uint64_t nonce[2]);
bool sml_exchange_fail(struct sml_exchange *x, enum sml_trouble trouble, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
