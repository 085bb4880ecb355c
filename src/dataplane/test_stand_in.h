/* SPDX-License-Identifier: Apache-2.0
 * Tests only: what stands in for a switch is a server in a thread of its own, one connection at a time. A test brings
 * the server's language; here is what such servers and their tests share: the socket, a log of what was asked, calls
 * that are to go wrong, and the job that all of them fill. One a test program. Functions here are stand_in_*. */
#pragma once

#include <pthread.h>
#include <sys/socket.h>

#include "aggd/dataplane.h"

#define PACKET_LANES 64u
#define POOL_SLOTS 128u
#define JOB 3u
#define SLOT_BASE 64u
#define STAND_IN_VOUCHER 0x5a5b5c5du
#define STAND_IN_LENGTHY_BYTES 600u

struct stand_in {
  int listen_fd;
  pthread_t thread;
  void (*serve)(int fd);
  struct sml_addr addr;        /* on loopback; of a local socket: none */
  struct sml_dataplane *plane; /* of the test's switch */
  char error[512];
  pthread_mutex_t lock; /* of what follows, and of what the test's server keeps besides */
  int client_fd;
  char log[65536];
  size_t log_bytes;
  uint32_t num_calls, faulty_call; /* from 1 */
  uint32_t fault;                  /* the test's kinds; 0: none */
  bool is_slow;                    /* answers come byte by byte */
  uint32_t words[2 * POOL_SLOTS];
};
extern struct stand_in stand_in;

/* serve: a connection, to its end. addr NULL: a port of loopback's. All else is as nothing had been asked yet. */
void stand_in_start(const struct sockaddr *addr, socklen_t addr_bytes, void (*serve)(int fd));
void stand_in_stop(void);
/* The server's: nobody will be able to connect any more. */
void stand_in_die(void);

/* The server's, which has the lock. take_call: a call came; its fault. */
uint32_t stand_in_take_call(void);
__attribute__((format(printf, 1, 2))) void stand_in_note(const char *format, ...);
/* The answer, or its first bytes. */
void stand_in_answer(int fd, const void *bytes, size_t num_bytes);

/* The call after so many more goes wrong. */
void stand_in_plan_fault(uint32_t fault, uint32_t call);
void stand_in_expect(const char *log); /* and forgets it */
void stand_in_forget(void);
uint32_t stand_in_count_calls(void);
void stand_in_hang_up(void);

struct sml_addr stand_in_make_addr(uint32_t ip, uint16_t port);
/* Calls of the test's switch; an error is in stand_in.error. The aggregator is 10.7.0.1:0xbeef; contributor c is
 * 10.7.0.(100 + c):(0x9c40 + c) with MAC 02:00:00:00:00:(10 + c) at port 1 + c. */
bool stand_in_open_switch(void);
bool stand_in_start_job(uint32_t epoch, uint32_t num_contributors, uint32_t num_slots);
/* The same of another job, whose contributor c is at port first_port + c. */
bool stand_in_start_job_of(uint16_t number, uint32_t epoch, uint32_t num_contributors, uint32_t num_slots,
                           uint32_t first_port);
/* A contributor of that job of so many, whose first one came by first_port, is at another port now. */
bool stand_in_move(uint16_t number, uint32_t num_contributors, uint32_t first_port, uint32_t contributor,
                   uint32_t port);
void stand_in_close_job(void);
void stand_in_read_counters(uint64_t *counts);
/* A slot of the job that waits for it, or UINT32_MAX. */
uint32_t stand_in_find_blocked(uint32_t contributor);

/* What any switch must do, one of which nothing was asked yet. why: what it says when the connection has gone. */
void stand_in_check_who_blocks(void); /* and the words that tell */
void stand_in_check_death_is_noticed(const char *why);
/* lengthy: the server's fault of an answer that has STAND_IN_LENGTHY_BYTES more than it should. */
void stand_in_check_dripping_is_given_up(uint32_t lengthy);
void stand_in_check_ranks_must_reach_us(void);
