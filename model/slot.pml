/* SPDX-License-Identifier: Apache-2.0
 * One slot with its two versions: the paper's one-bit version (NSDI'21 algorithms 3 and 4) and the phase
 * that replaces it, over networks that lose, repeat and reorder. README.md says what is shown.
 *
 * A pool is the set of (worker, phase) contributions in it, so that a wrong sum is seen exactly, whatever
 * the values are. There are no clocks: a timer may fire at any time.
 *   safe  every result that a worker takes is the sum of every worker's contribution of its phase, once each
 *   live  from every reachable state with empty channels a perfect network lets some worker advance */

#ifndef N
#define N 2 /* workers */
#endif
#ifndef C
#define C 2 /* packets in flight, a worker and direction */
#endif
#ifndef P
#define P 3 /* phases */
#endif
#ifndef ONE_BIT
#define ONE_BIT 0 /* the aggregator knows the phase modulo 2 alone */
#endif
#ifndef CLEARS_OTHER
#define CLEARS_OTHER 1 /* one bit: a contribution clears the other version's seen bit */
#endif
#ifndef AS_PRINTED
#define AS_PRINTED 0 /* algorithm 4 to the letter: every result is written and answered, expected or not */
#endif
#define BAG 99
#ifndef UP
#define UP BAG /* by how many others a packet may be overtaken on its way up: 0 is FIFO, BAG no limit */
#endif
#ifndef DOWN
#define DOWN BAG
#endif
#ifndef LOSS
#define LOSS 1
#endif
#ifndef DUP
#define DUP 1
#endif
#ifndef AGGREGATOR_RESTARTS
#define AGGREGATOR_RESTARTS 0
#endif
#ifndef WORKER_RESTARTS
#define WORKER_RESTARTS 0
#endif
#ifndef SAFE
#define SAFE 1 /* look for wrong sums */
#endif
#ifndef LIVE
#define LIVE 1 /* look for workers that are stuck */
#endif

#define FIRST_PHASE 2 /* 0: a cell that was never used */
#define END_PHASE (FIRST_PHASE + P)
#define BIT(w) (1 << (w))
#define MARK(w, p) (1 << ((w) * P + (p) - FIRST_PHASE))

typedef Cell {
  byte phase; /* one bit: not used */
  byte seen;
  byte count; /* one bit: modulo N, as in algorithm 3 */
  int pool;   /* set of MARKs */
  bool has_double
}
/* An update is its phase; a result is 2 * phase, and + 1 if its sum is wrong. */
typedef Queue {
  byte num;
  byte packet[C];
  byte overtaken[C] /* by so many others */
}
Cell cell[2];
Queue queue[2 * N]; /* queue[w] goes up from worker w, queue[N + w] down to it */
byte phase[N];
byte aggregator_restarts, worker_restarts;

#define LIMIT(q) ((q) < N -> UP : DOWN)

/* Scratch, zero between two actions. */
byte w, q, place, fate, taken, v, r, i, j, k;
bool is_allowed, has_progress;
int whole;

/* A bag is sorted: states that differ in its order alone are one. */
inline put(to, value) {
  j = queue[to].num;
  do
  :: LIMIT(to) == BAG && j > 0 && queue[to].packet[j - 1] > value ->
    queue[to].packet[j] = queue[to].packet[j - 1];
    j--
  :: else -> break
  od;
  queue[to].packet[j] = value;
  queue[to].num++
}

/* Takes packet `place` and overtakes those before it. */
inline take(from) {
  taken = queue[from].packet[place];
  j = 0;
  do
  :: j < place -> queue[from].overtaken[j] = queue[from].overtaken[j] + (LIMIT(from) != BAG); j++
  :: else -> break
  od;
  queue[from].num--;
  do
  :: j < queue[from].num ->
    queue[from].packet[j] = queue[from].packet[j + 1];
    queue[from].overtaken[j] = queue[from].overtaken[j + 1];
    j++
  :: else -> break
  od;
  queue[from].packet[j] = 0;
  queue[from].overtaken[j] = 0
}

inline may_take(from) {
  is_allowed = true;
  j = 0;
  do
  :: j < place -> is_allowed = is_allowed && (LIMIT(from) == BAG || queue[from].overtaken[j] < LIMIT(from)); j++
  :: else -> break
  od
}

/* The result is labelled with the phase of the packet that it answers. */
inline send_result(to, number) {
  whole = 0;
  k = 0;
  do
  :: k < N -> whole = whole | MARK(k, number); k++
  :: else -> break
  od;
  put(N + to, 2 * number + (cell[v].pool != whole || cell[v].has_double))
}

inline multicast(number) {
  r = 0;
  do
  :: r < N -> send_result(r, number); r++
  :: else -> break
  od
}

inline contribute(from, number) {
  if
  :: cell[v].count == 0 -> cell[v].pool = 0; cell[v].has_double = false
  :: else
  fi;
  cell[v].has_double = cell[v].has_double || (cell[v].pool & MARK(from, number)) != 0;
  cell[v].pool = cell[v].pool | MARK(from, number);
  cell[v].seen = cell[v].seen | BIT(from)
}

/* Algorithm 3. */
inline aggregate_one_bit(from, number) {
  v = number & 1;
  if
  :: (cell[v].seen & BIT(from)) == 0 ->
    contribute(from, number);
    cell[1 - v].seen = (CLEARS_OTHER -> cell[1 - v].seen & ~BIT(from) : cell[1 - v].seen);
    cell[v].count = (cell[v].count + 1) % N;
    if
    :: cell[v].count == 0 -> multicast(number)
    :: else
    fi
  :: else ->
    if
    :: cell[v].count == 0 -> send_result(from, number)
    :: else
    fi
  fi
}

inline aggregate_phase(from, number) {
  v = number & 1;
  if
  :: number > cell[v].phase -> cell[v].phase = number; cell[v].seen = 0; cell[v].count = 0
  :: else
  fi;
  if
  :: number < cell[v].phase /* stale */
  :: number == cell[v].phase && (cell[v].seen & BIT(from)) == 0 ->
    contribute(from, number);
    cell[v].count++;
    if
    :: cell[v].count == N -> multicast(number)
    :: else
    fi
  :: else ->
    if
    :: cell[v].count == N -> send_result(from, number)
    :: else
    fi
  fi
}

#if ONE_BIT
#define aggregate(from, number) aggregate_one_bit(from, number)
#else
#define aggregate(from, number) aggregate_phase(from, number)
#endif

inline take_result(to, number, is_wrong) {
  if
  :: number == phase[to] || AS_PRINTED -> assert(!SAFE || !(is_wrong)) /* wrong sum */
  :: else
  fi;
  if
  :: AS_PRINTED && number + 1 < END_PHASE && queue[to].num < C -> put(to, number + 1)
  :: else
  fi;
  if
  :: number == phase[to] -> phase[to]++; has_progress = true
  :: else
  fi
}

/* A perfect network: every worker's timer fires once, and every packet arrives at once. */
inline be_calm() {
  i = 0;
  do
  :: i < N && phase[i] < END_PHASE ->
    aggregate(i, phase[i]);
    r = 0;
    do
    :: r < N && queue[N + r].num > 0 ->
      take(N + r);
      take_result(r, taken / 2, taken % 2)
    :: r < N && queue[N + r].num == 0 -> r++
    :: r == N -> break
    od;
    i++
  :: i < N && phase[i] == END_PHASE -> i++
  :: i == N -> break
  od
}

inline forget_scratch() {
  w = 0; q = 0; place = 0; fate = 0; taken = 0; v = 0; r = 0; i = 0; j = 0; k = 0;
  is_allowed = false; has_progress = false; whole = 0
}

#if N == 2
#define HAS_ROOM_DOWN (queue[2].num < C && queue[3].num < C)
#define HAVE_ALL_ENDED (phase[0] == END_PHASE && phase[1] == END_PHASE)
#define NUM_PACKETS (queue[0].num + queue[1].num + queue[2].num + queue[3].num)
#define CHOOSE_WORKER if :: w = 0 :: w = 1 fi
#define CHOOSE_QUEUE                                                                                         \
  if :: queue[0].num > 0 -> q = 0 :: queue[1].num > 0 -> q = 1 :: queue[2].num > 0 -> q = 2                \
     :: queue[3].num > 0 -> q = 3 fi
#else
#define HAS_ROOM_DOWN (queue[3].num < C && queue[4].num < C && queue[5].num < C)
#define HAVE_ALL_ENDED (phase[0] == END_PHASE && phase[1] == END_PHASE && phase[2] == END_PHASE)
#define NUM_PACKETS \
  (queue[0].num + queue[1].num + queue[2].num + queue[3].num + queue[4].num + queue[5].num)
#define CHOOSE_WORKER if :: w = 0 :: w = 1 :: w = 2 fi
#define CHOOSE_QUEUE                                                                                         \
  if :: queue[0].num > 0 -> q = 0 :: queue[1].num > 0 -> q = 1 :: queue[2].num > 0 -> q = 2                \
     :: queue[3].num > 0 -> q = 3 :: queue[4].num > 0 -> q = 4 :: queue[5].num > 0 -> q = 5 fi
#endif

active proctype world() {
  d_step {
    do
    :: i < N -> phase[i] = FIRST_PHASE; i++
    :: else -> break
    od;
    forget_scratch()
  }
  do
  :: atomic { /* a worker sends its update, for the first time or again */
      CHOOSE_WORKER;
      d_step {
        if
        :: phase[w] < END_PHASE && queue[w].num < C -> put(w, phase[w])
        :: else
        fi;
        forget_scratch()
      }
    }
  :: NUM_PACKETS > 0 -> atomic { /* a packet arrives, arrives and is repeated later, or is lost */
      CHOOSE_QUEUE;
      if :: place = 0 :: queue[q].num > 1 -> place = 1 :: queue[q].num > 2 -> place = 2 fi;
      if :: fate = 0 :: DUP -> fate = 1 :: LOSS -> fate = 2 fi;
      d_step {
        may_take(q);
        if
        :: !is_allowed || (q < N && fate != 2 && !HAS_ROOM_DOWN) /* later */
        :: else ->
          if
          :: fate == 1 -> taken = queue[q].packet[place]
          :: else -> take(q)
          fi;
          if
          :: fate == 2
          :: fate != 2 && q < N -> aggregate(q, taken)
          :: else -> take_result(q - N, taken / 2, taken % 2)
          fi
        fi;
        forget_scratch()
      }
    }
  :: aggregator_restarts < AGGREGATOR_RESTARTS -> d_step {
      aggregator_restarts++;
      do
      :: i < 2 ->
        cell[i].phase = 0; cell[i].seen = 0; cell[i].count = 0; cell[i].pool = 0; cell[i].has_double = false;
        i++
      :: else -> break
      od;
      forget_scratch()
    }
  :: worker_restarts < WORKER_RESTARTS -> atomic {
      CHOOSE_WORKER;
      d_step {
        worker_restarts++;
        phase[w] = FIRST_PHASE;
        forget_scratch()
      }
    }
  :: LIVE && NUM_PACKETS == 0 && !HAVE_ALL_ENDED -> d_step {
      be_calm();
      assert(has_progress); /* stuck */
      forget_scratch()
    }
  :: HAVE_ALL_ENDED && NUM_PACKETS == 0 -> break
  od
}
