/* SPDX-License-Identifier: Apache-2.0
 * A job as decided (docs/PROTOCOL.md rules R14 to R43): slots with grants, operations that follow each other, exponent
 * chunks, probes, epochs, departures, aborts, restarts. README.md says what is shown and which C function
 * does what is done here.
 *
 * The network holds at most C packets a worker and direction, loses, repeats and reorders without limit;
 * what is sent into a full channel is lost. Control connections are reliable and arbitrarily slow. There
 * are no clocks: a timer may fire at any time.
 *   safe  every result that a worker takes is the sum of every rank's contribution of the chunk that the
 *         worker thinks it is, in the worker's epoch, once each; no chunk is granted twice; workers in one
 *         phase of a slot hold the same grant (I9) and are at most one phase apart (I1); no honest rank is
 *         accused (JUMP, MISMATCH)
 *   live  from every reachable state with an empty network, a network that is perfect from then on leads
 *         further, until every worker has all its sums or an error
 *
 * With WORLDS > 0 a random simulation (spin -T -nSEED) prints that many worlds for replay.c: a line an
 * action, and behind it, with ">", what follows from it. */

#ifndef N
#define N 2 /* workers */
#endif
#ifndef S
#define S 1 /* slots */
#endif
#ifndef C
#define C 1 /* packets of a worker in flight to the aggregator */
#endif
#ifndef C_DOWN
#define C_DOWN C /* and from it; at most C */
#endif
#ifndef OPERATIONS
#define OPERATIONS 1 /* an epoch */
#endif
#ifndef L
#define L 3 /* chunks an operation */
#endif
#ifndef EXPONENTS
#define EXPONENTS 0 /* an operation's first chunk has the exponents that its others wait for */
#endif
#ifndef LOSS
#define LOSS 1
#endif
#ifndef DUP
#define DUP 1
#endif
#ifndef EPOCHS
#define EPOCHS 1 /* every worker asks for a new one when its operations have ended */
#endif
#ifndef AGGREGATOR_RESTARTS
#define AGGREGATOR_RESTARTS 0
#endif
#ifndef WORKER_RESTARTS
#define WORKER_RESTARTS 0
#endif
#ifndef GIVE_UPS
#define GIVE_UPS 0 /* workers whose own deadline passes */
#endif
#ifndef QUESTIONS
#define QUESTIONS 0 /* at any time the aggregator may ask any member about a slot, or repeat a result to it */
#endif
#ifndef RETRIES
#define RETRIES 0 /* times that a worker joins again after an error or its restart */
#endif
#ifndef WORLDS
#define WORLDS 0
#endif
#ifndef FIRST_WORLD
#define FIRST_WORLD 0 /* printed with each: a name for it */
#endif

/* What is looked for. */
#ifndef SUMS
#define SUMS 1
#endif
#ifndef GRANTS
#define GRANTS 1
#endif
#ifndef ACCUSED
#define ACCUSED 1
#endif
#ifndef LIVE
#define LIVE 1
#endif

/* What must be found. */
#ifndef GRANTS_ANEW
#define GRANTS_ANEW 0 /* each repeat draws a new grant */
#endif
#ifndef COMPARES_TAGS
#define COMPARES_TAGS 1
#endif
#ifndef COMPARES_EPOCHS
#define COMPARES_EPOCHS 1
#endif
#ifndef TAKES_STALE
#define TAKES_STALE 0 /* a worker takes any result for an outstanding slot */
#endif
#ifndef CHECKS_SEEN
#define CHECKS_SEEN 1
#endif
#ifndef FIRST_CURSOR
#define FIRST_CURSOR S
#endif
#ifndef ABORTS
#define ABORTS 1 /* 0: nobody is told that a job has ended */
#endif
#ifndef LEAVES_BLOCKED
#define LEAVES_BLOCKED 0 /* a slot that waits for a lost rank ends nothing */
#endif

#define FIRST_PHASE 2
#define K (OPERATIONS * L)
#define BIT(w) (1 << (w))
#define EVERYONE (BIT(N) - 1)

/* Packets. GRANT and FLAG are of downward ones; FLAG: the sum is wrong, or PENDING says "yours is missing". */
#define UPDATE 1
#define AGAIN 2 /* an UPDATE flagged RETRANSMISSION */
#define PROBE 3
#define RESULT 4
#define REPEAT 5 /* a RESULT flagged RETRANSMISSION */
#define PENDING 6
#define PACKET(kind, e, s, p, t) ((kind) | (e) << 3 | (s) << 6 | (p) << 8 | (t) << 12)
#define ANSWER(kind, e, s, p, t, grant, flag) (PACKET(kind, e, s, p, t) | (grant) << 16 | (flag) << 20)
#define KIND(m) ((m) & 7)
#define EPOCH(m) ((m) >> 3 & 7)
#define SLOT(m) ((m) >> 6 & 3)
#define PHASE(m) ((m) >> 8 & 15)
#define TAG(m) ((m) >> 12 & 15)
#define GRANT(m) ((m) >> 16 & 15)
#define FLAG(m) ((m) >> 20 & 1)

typedef Queue {
  byte num;
  int packet[C] /* sorted: states that differ in its order alone are one */
}
Queue queue[2 * N]; /* queue[w] goes up from worker w, queue[N + w] down to it */

/* Workers. */
#define RUNNING 1
#define WANTING 2 /* all sums are there; asked for the next epoch */
#define AWAY 3    /* not in a job; will join again */
#define JOINING 4
#define ENDED 5   /* all sums, said goodbye */
#define FAILED 6
#define IDLE 0 /* slots; READY lasts no time here: what may be sent is sent at once */
#define WAITING 1
#define OUTSTANDING 2
byte status[N], worker_epoch[N], submitted[N], tries[N];
short got[N]; /* chunks of this epoch */
byte phase[N * S], chunk[N * S], state[N * S];

/* The aggregator. */
typedef Cell {
  byte phase; /* 0: never used */
  byte seen;
  byte tag;
  byte grant;
  bool is_wrong /* holds something twice, or of another chunk or epoch */
}
Cell cell[2 * S];
bool is_open;
byte epoch, last_epoch, cursor, members, departed, joined, wants;

/* Control connections: what is on its way. */
#define LOST 1
#define GAVE_UP 2
#define GOODBYE 3
#define WANTS_EPOCH 4
byte notice[N]; /* to the aggregator */
bool told[N];   /* to the worker: ABORT, or the connection's end */

byte aggregator_restarts, worker_restarts, give_ups;
int world_number;

/* Scratch, zero between two actions. */
byte w, q, place, fate, c, a, s, i, j, r;
int m;
bool has_progress, is_next, is_same_tag, is_sum_right, is_chunk_new, is_grant_shared, is_phase_near;

/* ---- the network ---- */

#define ROOM(q) ((q) < N -> C : C_DOWN)

inline put(to, value) {
  j = queue[to].num;
  if
  :: j == ROOM(to)
  :: else ->
    do
    :: j > 0 && queue[to].packet[j - 1] > (value) -> queue[to].packet[j] = queue[to].packet[j - 1]; j--
    :: else -> break
    od;
    queue[to].packet[j] = value;
    queue[to].num++
  fi
}

inline remove(from) {
  queue[from].num--;
  for (j : place .. C - 2) { queue[from].packet[j] = queue[from].packet[j + 1] }
  queue[from].packet[C - 1] = 0
}

/* ---- the aggregator ---- */

inline answer(to, kind, flag) {
  printf("> answer %d %d %d %d %d %d %d %d\n", to, kind, c / 2, PHASE(m), TAG(m),
         (kind == PENDING -> 0 : cell[c].grant), flag, queue[N + to].num == C_DOWN);
  put(N + to, ANSWER(kind, EPOCH(m), c / 2, PHASE(m), TAG(m), (kind == PENDING -> 0 : cell[c].grant), flag))
}

/* The members' connections are forgotten: what is on its way up them too. */
inline close_job() {
  printf("> close\n");
  has_progress = true;
  for (r : 0 .. N - 1) {
    if
    :: (members & BIT(r)) != 0 ->
      told[r] = ABORTS && (status[r] == RUNNING || status[r] == WANTING || status[r] == JOINING);
      notice[r] = 0
    :: else
    fi
  }
  is_open = false; members = 0; departed = 0; joined = 0; wants = 0; cursor = 0; epoch = 0;
  for (r : 0 .. 2 * S - 1) {
    cell[r].phase = 0; cell[r].seen = 0; cell[r].tag = 0; cell[r].grant = 0; cell[r].is_wrong = false
  }
}

inline open_job() {
  has_progress = true;
  last_epoch++;
  epoch = last_epoch; is_open = true; members = EVERYONE; departed = 0; joined = 0; wants = 0;
  cursor = FIRST_CURSOR;
  for (r : 0 .. 2 * S - 1) {
    cell[r].phase = 0; cell[r].seen = 0; cell[r].tag = 0; cell[r].grant = 0; cell[r].is_wrong = false
  }
  printf("> open %d\n", epoch)
}

inline end_if_blocked() {
  is_next = wants != 0 && departed != 0; /* an epoch that will not come */
  for (r : 0 .. 2 * S - 1) {
    is_next = is_next || (cell[r].seen != 0 && cell[r].seen != EVERYONE && (departed & ~cell[r].seen) != 0)
  }
  if
  :: is_next && is_open && !LEAVES_BLOCKED -> close_job()
  :: else
  fi
}

inline contribute(from) {
  cell[c].is_wrong = cell[c].is_wrong || EPOCH(m) != epoch || TAG(m) != cell[c].tag ||
                     (cell[c].seen & BIT(from)) != 0;
  cell[c].seen = cell[c].seen | BIT(from);
  if
  :: cell[c].seen == EVERYONE ->
    cell[c].grant = cursor;
    cursor++;
    printf("> verdict complete\n");
    for (r : 0 .. N - 1) {
      if
      :: (departed & BIT(r)) == 0 -> answer(r, RESULT, cell[c].is_wrong)
      :: else
      fi
    }
  :: else ->
    printf("> verdict %d\n", cell[c].seen);
    end_if_blocked()
  fi
}

/* Only a member that holds the result of the phase before can be in this one. */
inline find_next() {
  is_next = (PHASE(m) == FIRST_PHASE -> cell[c].phase == 0 :
             cell[a].phase == PHASE(m) - 1 && cell[a].seen == EVERYONE &&
             (cell[c].phase == 0 -> PHASE(m) == FIRST_PHASE + 1 :
              cell[c].phase == PHASE(m) - 2 && cell[c].seen == EVERYONE))
}

inline decide_newer(from) {
  find_next();
  assert(is_next || !ACCUSED); /* JUMP */
  if
  :: !is_next -> close_job()
  :: is_next && KIND(m) == PROBE -> printf("> verdict pending\n"); answer(from, PENDING, 1)
  :: else ->
    cell[c].phase = PHASE(m); cell[c].seen = 0; cell[c].tag = TAG(m); cell[c].grant = 0;
    cell[c].is_wrong = false;
    contribute(from)
  fi
}

inline decide_same(from) {
  is_same_tag = TAG(m) == cell[c].tag || !COMPARES_TAGS;
  assert(is_same_tag || !ACCUSED); /* MISMATCH */
  if
  :: !is_same_tag -> close_job()
  :: is_same_tag && cell[c].seen == EVERYONE ->
    printf("> verdict repeat\n");
    if
    :: GRANTS_ANEW -> cell[c].grant = cursor; cursor++
    :: else
    fi;
    answer(from, REPEAT, cell[c].is_wrong)
  :: is_same_tag && cell[c].seen != EVERYONE && KIND(m) == PROBE ->
    printf("> verdict pending\n");
    answer(from, PENDING, (cell[c].seen & BIT(from)) == 0)
  :: is_same_tag && cell[c].seen != EVERYONE && KIND(m) != PROBE ->
    if
    :: (cell[c].seen & BIT(from)) == 0 || !CHECKS_SEEN -> contribute(from)
    :: else ->
      if
      :: KIND(m) == AGAIN -> printf("> verdict pending\n"); answer(from, PENDING, 0)
      :: else -> printf("> verdict duplicate\n")
      fi
    fi
  fi
}

inline aggregate(from) {
  c = 2 * SLOT(m) + (PHASE(m) & 1);
  a = 2 * SLOT(m) + 1 - (PHASE(m) & 1);
  if
  :: !is_open || (COMPARES_EPOCHS && EPOCH(m) != epoch) || (departed & BIT(from)) != 0 ->
    printf("> verdict refused\n")
  :: else ->
    if
    :: PHASE(m) < cell[c].phase -> printf("> verdict stale\n")
    :: PHASE(m) == cell[c].phase -> decide_same(from)
    :: PHASE(m) > cell[c].phase -> decide_newer(from)
    fi
  fi
}

/* Unasked: what the order of packets makes it do (aggregator_solicit.c, worker_questions.c) it may do at any time.
 * That a worker leaves a question alone which crossed its update is as if the question were lost. */
inline question(to) {
  printf("question %d %d %d %d %d\n", to, c, cell[c].seen == EVERYONE, cell[c].phase, cell[c].tag);
  m = PACKET(0, epoch, c / 2, cell[c].phase, cell[c].tag);
  if
  :: cell[c].seen == EVERYONE -> answer(to, REPEAT, cell[c].is_wrong)
  :: else -> answer(to, PENDING, (cell[c].seen & BIT(to)) == 0)
  fi
}

/* What a control connection brings. */
inline hear(from) {
  printf("hear %d %d\n", from, notice[from]);
  if
  :: notice[from] == GAVE_UP -> notice[from] = 0; close_job()
  :: notice[from] == WANTS_EPOCH ->
    notice[from] = 0;
    wants = wants | BIT(from);
    if
    :: wants == EVERYONE -> open_job()
    :: else -> end_if_blocked()
    fi
  :: notice[from] == LOST || notice[from] == GOODBYE ->
    notice[from] = 0;
    departed = departed | BIT(from);
    if
    :: departed == EVERYONE -> close_job()
    :: else -> end_if_blocked()
    fi
  fi
}

/* ---- the workers ---- */

inline send(from, slot, kind) {
  printf("> send %d %d %d %d %d %d\n", from, kind, slot, phase[(from) * S + slot], chunk[(from) * S + slot],
         queue[from].num == C);
  put(from, PACKET(kind, worker_epoch[from], slot, phase[(from) * S + slot], chunk[(from) * S + slot]))
}

#define NEEDS_EXPONENTS(of) (EXPONENTS && (of) % L != 0)
#define HAS_EXPONENTS(by, of) ((got[by] & BIT((of) - (of) % L)) != 0)

inline activate(at, slot) {
  if
  :: chunk[(at) * S + slot] >= submitted[at] /* waits for the next operation */
  :: chunk[(at) * S + slot] < submitted[at] && NEEDS_EXPONENTS(chunk[(at) * S + slot]) &&
       !HAS_EXPONENTS(at, chunk[(at) * S + slot]) -> state[(at) * S + slot] = WAITING
  :: else ->
    state[(at) * S + slot] = OUTSTANDING;
    send(at, slot, UPDATE)
  fi
}

inline submit(at) {
  printf("submit %d\n", at);
  submitted[at] = submitted[at] + L;
  for (s : 0 .. S - 1) {
    if
    :: state[(at) * S + s] == IDLE -> activate(at, s)
    :: else
    fi
  }
}

inline begin(at) {
  printf("begin %d %d\n", at, epoch);
  status[at] = RUNNING;
  worker_epoch[at] = epoch;
  submitted[at] = 0;
  got[at] = 0;
  for (s : 0 .. S - 1) {
    phase[(at) * S + s] = FIRST_PHASE; chunk[(at) * S + s] = s; state[(at) * S + s] = IDLE
  }
}

/* With an error, or because the process is new. */
inline leave(at) {
  printf("> leave %d\n", at);
  status[at] = (tries[at] < RETRIES -> AWAY : FAILED);
  told[at] = false; submitted[at] = 0; got[at] = 0;
  for (s : 0 .. S - 1) { phase[(at) * S + s] = 0; chunk[(at) * S + s] = 0; state[(at) * S + s] = IDLE }
}

inline fall(at, why) {
  notice[at] = (told[at] -> 0 : why); /* nobody listens when the job has ended already */
  leave(at)
}

/* I1 and I9, after a step of worker `at`. */
inline compare_workers(at, slot) {
  for (r : 0 .. N - 1) {
    if
    :: status[r] == RUNNING && worker_epoch[r] == worker_epoch[at] ->
      is_grant_shared = phase[r * S + slot] != phase[(at) * S + slot] ||
                        chunk[r * S + slot] == chunk[(at) * S + slot];
      assert(is_grant_shared || !GRANTS); /* I9 */
      is_phase_near = phase[r * S + slot] + 1 >= phase[(at) * S + slot];
      assert(is_phase_near || !GRANTS) /* I1 */
    :: else
    fi
  }
}

inline take_sum(at, slot) {
  is_sum_right = !FLAG(m) && TAG(m) == chunk[(at) * S + slot] && EPOCH(m) == worker_epoch[at];
  assert(is_sum_right || !SUMS);
  is_chunk_new = (got[at] & BIT(chunk[(at) * S + slot])) == 0;
  assert(is_chunk_new || !GRANTS);
  got[at] = got[at] | BIT(chunk[(at) * S + slot]);
  phase[(at) * S + slot]++;
  chunk[(at) * S + slot] = GRANT(m);
  state[(at) * S + slot] = IDLE;
  has_progress = true;
  compare_workers(at, slot);
  for (s : 0 .. S - 1) {
    if
    :: state[(at) * S + s] == WAITING -> activate(at, s)
    :: else
    fi
  }
  activate(at, slot);
  if
  :: got[at] == BIT(K) - 1 ->
    status[at] = (worker_epoch[at] < EPOCHS -> WANTING : ENDED);
    notice[at] = (worker_epoch[at] < EPOCHS -> WANTS_EPOCH : GOODBYE);
    printf("> done %d\n", at)
  :: else
  fi
}

inline receive(at) {
  s = SLOT(m);
  if
  :: status[at] != RUNNING || (COMPARES_EPOCHS && EPOCH(m) != worker_epoch[at]) -> printf("> accept refused\n")
  :: else ->
    if
    :: state[(at) * S + s] != OUTSTANDING ||
       (!TAKES_STALE && (PHASE(m) != phase[(at) * S + s] || TAG(m) != chunk[(at) * S + s])) ->
      printf("> accept drop\n")
    :: else ->
      if
      :: KIND(m) != PENDING -> printf("> accept result\n"); take_sum(at, SLOT(m))
      :: KIND(m) == PENDING && FLAG(m) -> printf("> accept pending\n"); send(at, SLOT(m), AGAIN)
      :: else -> printf("> accept pending\n")
      fi
    fi
  fi
}

inline ask(at, slot) {
  if
  :: status[at] == RUNNING && state[(at) * S + slot] == OUTSTANDING -> send(at, slot, PROBE)
  :: else
  fi
}

/* ---- the world ---- */

inline clear() {
  w = 0; q = 0; place = 0; fate = 0; c = 0; a = 0; s = 0; i = 0; j = 0; r = 0; m = 0;
  has_progress = false; is_next = false; is_same_tag = false;
  is_sum_right = false; is_chunk_new = false; is_grant_shared = false; is_phase_near = false
}

inline start_world() {
  world_number++;
  printf("world %d %d %d %d %d %d\n", FIRST_WORLD + world_number, N, S, OPERATIONS, L, EXPONENTS);
  aggregator_restarts = 0; worker_restarts = 0; give_ups = 0; last_epoch = 0;
  for (i : 0 .. 2 * N - 1) {
    for (j : 0 .. C - 1) { queue[i].packet[j] = 0 }
    queue[i].num = 0
  }
  open_job();
  for (i : 0 .. N - 1) { notice[i] = 0; told[i] = false; tries[i] = 0; begin(i) }
  clear()
}

inline restart_aggregator() {
  printf("restart\n");
  aggregator_restarts++;
  for (i : 0 .. N - 1) { members = members | joined & BIT(i) } /* who is about to join loses its connection too */
  close_job()
}

inline deliver_all() {
  q = 0;
  place = 0;
  do
  :: q < 2 * N && queue[q].num > 0 ->
    m = queue[q].packet[0];
    remove(q);
    if
    :: q < N -> aggregate(q)
    :: else -> receive(q - N)
    fi;
    q = 0
  :: q < 2 * N && queue[q].num == 0 -> q++
  :: q == 2 * N -> break
  od
}

/* A perfect network: whatever can happen happens once. */
inline be_calm() {
  for (i : 0 .. N - 1) {
    if
    :: told[i] -> leave(i); has_progress = true
    :: else
    fi;
    if
    :: notice[i] != 0 -> hear(i); has_progress = true
    :: else
    fi;
    if
    :: status[i] == AWAY && !is_open ->
      status[i] = JOINING; tries[i]++; joined = joined | BIT(i); has_progress = true
    :: (status[i] == WANTING || status[i] == JOINING) && is_open && worker_epoch[i] != epoch && !told[i] ->
      begin(i); has_progress = true
    :: status[i] == RUNNING && submitted[i] < K -> submit(i); has_progress = true
    :: else
    fi
  }
  if
  :: joined == EVERYONE -> open_job()
  :: else
  fi;
  deliver_all();
  for (i : 0 .. N * S - 1) {
    ask(i / S, i % S);
    deliver_all()
  }
  for (i : 0 .. N - 1) {
    if
    :: status[i] == JOINING && !has_progress -> status[i] = FAILED; joined = joined & ~BIT(i); has_progress = true
    :: else
    fi
  }
}

#define HAS_ENDED(x) (status[x] == ENDED || status[x] == FAILED)
#define MAY_BEGIN(x) \
  ((status[x] == WANTING || status[x] == JOINING) && is_open && worker_epoch[x] != epoch && !told[x] && \
   notice[x] == 0)
#define MAY_SUBMIT(x) (status[x] == RUNNING && submitted[x] < K)
#define MAY_ASK(x) (status[x] == RUNNING && (state[(x) * S] == OUTSTANDING || state[(x) * S + S - 1] == OUTSTANDING))
#define MAY_BE_ASKED(x) \
  (QUESTIONS && is_open && (departed & BIT(x)) == 0 && queue[N + (x)].num < C_DOWN && \
   (cell[0].phase != 0 || cell[1].phase != 0 || cell[2 * S - 2].phase != 0 || cell[2 * S - 1].phase != 0))
#define IS_IN_JOB(x) (status[x] == RUNNING || status[x] == WANTING)
#if N == 2
#define ANY(CLAIM) (CLAIM(0) || CLAIM(1))
#define CHOOSE_WORKER(CLAIM) if :: CLAIM(0) -> w = 0 :: CLAIM(1) -> w = 1 fi
#define HAVE_ALL_ENDED (HAS_ENDED(0) && HAS_ENDED(1))
#define NUM_PACKETS (queue[0].num + queue[1].num + queue[2].num + queue[3].num)
#define CHOOSE_QUEUE                                                                                         \
  if :: queue[0].num > 0 -> q = 0 :: queue[1].num > 0 -> q = 1 :: queue[2].num > 0 -> q = 2                \
     :: queue[3].num > 0 -> q = 3 fi
#else
#define ANY(CLAIM) (CLAIM(0) || CLAIM(1) || CLAIM(2))
#define CHOOSE_WORKER(CLAIM) if :: CLAIM(0) -> w = 0 :: CLAIM(1) -> w = 1 :: CLAIM(2) -> w = 2 fi
#define HAVE_ALL_ENDED (HAS_ENDED(0) && HAS_ENDED(1) && HAS_ENDED(2))
#define NUM_PACKETS (queue[0].num + queue[1].num + queue[2].num + queue[3].num + queue[4].num + queue[5].num)
#define CHOOSE_QUEUE                                                                                         \
  if :: queue[0].num > 0 -> q = 0 :: queue[1].num > 0 -> q = 1 :: queue[2].num > 0 -> q = 2                \
     :: queue[3].num > 0 -> q = 3 :: queue[4].num > 0 -> q = 4 :: queue[5].num > 0 -> q = 5 fi
#endif
#define HAS_NOTICE(x) (notice[x] != 0)
#define IS_TOLD(x) (told[x])
#define MAY_JOIN(x) (status[x] == AWAY && !is_open && tries[x] < RETRIES)
#define IS_JOINING(x) (status[x] == JOINING && !is_open && !told[x])

/* A simulation tries an option that cannot happen as if it were the next one that can: packets come first, so
 * that they get most turns. What ends worlds is made rare there. */
#define NO :: WORLDS > 0 -> fate = 1
#define RARELY if :: fate = 0 NO NO NO NO NO NO NO NO NO NO NO NO NO NO NO fi
active proctype world() {
  d_step { start_world() }
  do
  :: NUM_PACKETS > 0 -> atomic { /* a packet arrives, arrives and is repeated later, or is lost */
      CHOOSE_QUEUE;
      if
      :: place = 0
      :: queue[q].num > 1 -> place = 1
      :: queue[q].num > 2 -> place = 2
      :: queue[q].num > 3 -> place = 3
      fi;
      if :: fate = 0 :: WORLDS > 0 -> fate = 0 :: DUP -> fate = 1 :: LOSS -> fate = 2 fi;
      d_step {
        m = queue[q].packet[place];
        printf("packet %d %d %d %d %d %d %d %d %d\n", q, fate, KIND(m), EPOCH(m), SLOT(m), PHASE(m), TAG(m), GRANT(m),
               FLAG(m));
        if
        :: fate != 1 -> remove(q)
        :: else
        fi;
        if
        :: fate == 2
        :: fate != 2 && q < N -> aggregate(q)
        :: else -> receive(q - N)
        fi;
        clear()
      }
    }
  :: ANY(MAY_ASK) -> atomic { /* in a replay all slots ask, as the C worker's clock has it */
      CHOOSE_WORKER(MAY_ASK);
      if :: place = 0 :: S > 1 && !WORLDS -> place = S - 1 fi;
      d_step {
        printf("timer %d\n", w);
        if
        :: WORLDS > 0 -> for (i : 0 .. S - 1) { ask(w, i) }
        :: else -> ask(w, place)
        fi;
        clear()
      }
    }
  :: ANY(MAY_BE_ASKED) -> atomic {
      CHOOSE_WORKER(MAY_BE_ASKED);
      if
      :: cell[0].phase != 0 -> c = 0
      :: cell[1].phase != 0 -> c = 1
      :: S > 1 && cell[2 * S - 2].phase != 0 -> c = 2 * S - 2
      :: S > 1 && cell[2 * S - 1].phase != 0 -> c = 2 * S - 1
      fi;
      d_step { question(w); clear() }
    }
  :: ANY(MAY_SUBMIT) -> atomic { CHOOSE_WORKER(MAY_SUBMIT); d_step { submit(w); clear() } }
  :: ANY(HAS_NOTICE) -> atomic { CHOOSE_WORKER(HAS_NOTICE); d_step { hear(w); clear() } }
  :: ANY(IS_TOLD) -> atomic { CHOOSE_WORKER(IS_TOLD); d_step { printf("told %d\n", w); leave(w); clear() } }
  :: ANY(MAY_BEGIN) -> atomic { CHOOSE_WORKER(MAY_BEGIN); d_step { begin(w); clear() } }
  :: ANY(MAY_JOIN) -> atomic {
      CHOOSE_WORKER(MAY_JOIN);
      d_step {
        printf("join %d\n", w);
        status[w] = JOINING; tries[w]++; joined = joined | BIT(w);
        if
        :: joined == EVERYONE -> open_job()
        :: else
        fi;
        clear()
      }
    }
  :: ANY(IS_JOINING) -> atomic { /* joining takes too long */
      CHOOSE_WORKER(IS_JOINING);
      d_step { joined = joined & ~BIT(w); status[w] = FAILED; printf("refuse %d\n", w); clear() }
    }
  :: aggregator_restarts < AGGREGATOR_RESTARTS -> atomic {
      RARELY;
      d_step {
        if
        :: fate == 0 -> restart_aggregator()
        :: else
        fi;
        clear()
      }
    }
  :: worker_restarts < WORKER_RESTARTS && ANY(IS_IN_JOB) -> atomic {
      CHOOSE_WORKER(IS_IN_JOB);
      RARELY;
      d_step {
        if
        :: fate == 0 -> printf("kill %d\n", w); worker_restarts++; fall(w, LOST)
        :: else
        fi;
        clear()
      }
    }
  :: give_ups < GIVE_UPS && ANY(IS_IN_JOB) -> atomic { /* a deadline of the worker's own */
      CHOOSE_WORKER(IS_IN_JOB);
      RARELY;
      d_step {
        if
        :: fate == 0 -> printf("kill %d\n", w); give_ups++; fall(w, GAVE_UP)
        :: else
        fi;
        clear()
      }
    }
  :: LIVE && !WORLDS && NUM_PACKETS == 0 && !HAVE_ALL_ENDED -> d_step {
      be_calm();
      assert(has_progress); /* stuck */
      clear()
    }
  :: HAVE_ALL_ENDED && world_number < WORLDS -> d_step { printf("end\n"); start_world() }
  :: HAVE_ALL_ENDED && world_number >= WORLDS && (WORLDS > 0 || NUM_PACKETS == 0) -> printf("end\n"); break
  od
}
