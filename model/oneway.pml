/* SPDX-License-Identifier: Apache-2.0
 * A window of chunks that not everybody contributes to, nor hears (docs/PROTOCOL.md "One-way windows"): sums that only
 * their owner gets, or copies of what the owner has. Position p has place p mod W (a version of a slot); the last of each
 * Q positions is a fence, to and from all, which says what earlier ones would. A worker takes and sends what stands in its
 * window: p, once a fence behind p - W is complete. The network is a bag with loss and repetition; timers may fire at any time.
 *   safe  what a worker takes is the sum of all contributors of its position, once each, and it has all of them when it
 *         takes a fence behind them; no honest worker is accused
 *   live  from every reachable state with empty channels a perfect network leads further */

#ifndef N
#define N 2 /* workers */
#endif
#ifndef C
#define C 1 /* packets in flight, a worker and direction */
#endif
#ifndef P
#define P 8 /* positions; worker d mod N owns the d-th that is no fence */
#endif
#ifndef W
#define W 4 /* places */
#endif
#ifndef Q
#define Q 2
#endif
#ifndef COPIES
#define COPIES 0 /* the owner contributes, and all others hear; else the other way round */
#endif
#ifndef ROOTED
#define ROOTED 0 /* worker 0 owns all */
#endif
#ifndef STEPS
#define STEPS 0 /* if not 0: operations of so many positions; all but worker 0 begin one when the one before has ended */
#endif
#ifndef WAITS
#define WAITS 1 /* for the fence, before a slot is used again */
#endif
#ifndef HAS_RESULTS
#define HAS_RESULTS 1 /* whoever contributes to a fence has what is for it of the positions before */
#endif
#ifndef KEEPS
#define KEEPS 1 /* the last complete fence has its place until a later one is complete */
#endif
#ifndef REPLACES
#define REPLACES 1 /* a complete fence completes earlier ones, and what comes for others is stale */
#endif
#ifndef ACCUSED
#define ACCUSED 1 /* look for workers that are accused */
#endif

#define ALL ((1 << N) - 1)
#define BIT(i) (1 << (i))
#define MARK(w, p) (1 << ((w) * P + (p)))
#define IS_FENCE(p) ((p) % Q == Q - 1)
#define OWNER(p) (ROOTED -> 0 : ((p) / Q * (Q - 1) + (p) % Q) % N)
#define CONTRIBUTORS(p) (IS_FENCE(p) -> ALL : (COPIES -> BIT(OWNER(p)) : ALL & ~BIT(OWNER(p))))
#define CONTRIBUTES(w, p) ((CONTRIBUTORS(p) & BIT(w)) != 0)
#define HEARS(w, p) (IS_FENCE(p) || !CONTRIBUTES(w, p))
#define CELL(p) ((p) % W)
#define FENCES ((BIT(P) - 1) / (BIT(Q) - 1) << (Q - 1))
#define FENCES_FROM(p) (FENCES & ~(BIT(p) - 1))
#define HAS_PASSED(w, p) ((got[w] & FENCES_FROM((p) + 1)) != 0)
#define IS_FREE(w, p) (!WAITS || (p) < W || (got[w] & FENCES_FROM((p) - W + KEEPS)) != 0)
#if STEPS
#define MAY(w, p) (IS_FREE(w, p) && (w == 0 || (p) < STEPS || (got[w] & FENCES_FROM((p) / STEPS * STEPS - 1)) != 0))
#else
#define MAY(w, p) IS_FREE(w, p)
#endif
#define IS_COMPLETE(c, p) (cell[c].last == (p) + 1 && (cell[c].seen == CONTRIBUTORS(p) || (IS_FENCE(p) && (p) < passed)))

/* Up: an update is its position, PROBE + it asks. Down: 2 * position, + 1 if wrong. */
#define PROBE 32
#define NOTHING 64
typedef Queue {
  byte num;
  byte packet[C]
}
typedef Cell {
  byte last; /* position + 1; 0: never used */
  byte seen;
  int pool;  /* set of MARKs */
  bool has_double
}
Queue queue[2 * N]; /* queue[w] goes up from worker w, queue[N + w] down to it */
Cell cell[W];
byte passed; /* behind the last complete fence */
int got[N]; /* positions of which the result is here */

/* Scratch, zero between two actions. */
byte w, q, place, fate, taken, v, r, i, j, k, wanted;
bool has_progress, is_next, is_sum_right, is_whole;
int whole;

/* Sorted: states that differ in the order alone are one. */
inline put(to, value) {
  j = queue[to].num;
  do
  :: j > 0 && queue[to].packet[j - 1] > value -> queue[to].packet[j] = queue[to].packet[j - 1]; j--
  :: else -> break
  od;
  queue[to].packet[j] = value;
  queue[to].num++
}

inline remove(from) {
  taken = queue[from].packet[place];
  queue[from].num--;
  j = place;
  do
  :: j < queue[from].num -> queue[from].packet[j] = queue[from].packet[j + 1]; j++
  :: else -> break
  od;
  queue[from].packet[j] = 0
}

inline send_result(to, p) {
  whole = 0;
  k = 0;
  do
  :: k < N -> whole = whole | (CONTRIBUTES(k, p) -> MARK(k, p) : 0); k++
  :: else -> break
  od;
  put(N + to, 2 * (p) + ((cell[v].pool != whole && !IS_FENCE(p)) || cell[v].has_double))
}

/* PROTOCOL.md rule R218. */
inline find_next() {
  is_next = cell[v].last == 0 || IS_COMPLETE(v, cell[v].last - 1)
}

inline take_update(from, p) {
  v = CELL(p);
  if
  :: p + 1 > cell[v].last && !(IS_FENCE(p) && p < passed) ->
    find_next();
    assert(!ACCUSED || is_next);
    cell[v].last = p + 1; cell[v].seen = 0; cell[v].pool = 0; cell[v].has_double = false
  :: else
  fi;
  if
  :: p + 1 == cell[v].last && !IS_COMPLETE(v, p) && (cell[v].seen & BIT(from)) == 0 ->
    cell[v].has_double = cell[v].has_double || (cell[v].pool & MARK(from, p)) != 0;
    cell[v].pool = cell[v].pool | MARK(from, p);
    cell[v].seen = cell[v].seen | BIT(from);
    r = 0;
    do
    :: r < N && cell[v].seen == CONTRIBUTORS(p) && HEARS(r, p) -> send_result(r, p); r++
    :: r < N && !(cell[v].seen == CONTRIBUTORS(p) && HEARS(r, p)) -> r++
    :: r == N -> break
    od;
    if
    :: REPLACES && IS_FENCE(p) && cell[v].seen == CONTRIBUTORS(p) && p >= passed -> passed = p + 1
    :: else
    fi
  :: p + 1 == cell[v].last && IS_COMPLETE(v, p) && IS_FENCE(p) -> send_result(from, p)
  :: else /* stale, or seen */
  fi
}

inline answer(to, p) {
  v = CELL(p);
  if
  :: IS_COMPLETE(v, p) -> send_result(to, p)
  :: else
  fi
}

inline aggregate(from, message) {
  if
  :: message < PROBE -> take_update(from, message)
  :: else -> answer(from, message - PROBE)
  fi
}

/* What stands beyond its window a worker drops. */
inline hear(to, message) {
  if
  :: MAY(to, message / 2) && !HAS_PASSED(to, message / 2) && (got[to] & BIT(message / 2)) == 0 ->
    is_sum_right = message % 2 == 0;
    assert(is_sum_right);
    got[to] = got[to] | BIT(message / 2);
    k = 0;
    do
    :: IS_FENCE(message / 2) && k < message / 2 ->
      is_whole = IS_FENCE(k) || !HEARS(to, k) || (got[to] & BIT(k)) != 0;
      assert(is_whole);
      k++
    :: !(IS_FENCE(message / 2) && k < message / 2) -> break
    od;
    has_progress = true
  :: else
  fi
}

/* What worker `by` may send about position p, into `wanted`. */
inline choose(by, p) {
  wanted = NOTHING;
  if
  :: MAY(by, p) && HEARS(by, p) && !HAS_PASSED(by, p) && (got[by] & BIT(p)) == 0 -> wanted = (IS_FENCE(p) -> p : PROBE + p)
  :: MAY(by, p) && !HEARS(by, p) && !HAS_PASSED(by, p) -> wanted = p
  :: else
  fi;
  k = 0;
  do
  :: k < p && IS_FENCE(p) && HAS_RESULTS && !IS_FENCE(k) && HEARS(by, k) && (got[by] & BIT(k)) == 0 -> wanted = NOTHING; k++
  :: k < p && !(IS_FENCE(p) && HAS_RESULTS && !IS_FENCE(k) && HEARS(by, k) && (got[by] & BIT(k)) == 0) -> k++
  :: k >= p -> break
  od
}

inline forget_scratch() {
  w = 0; q = 0; place = 0; fate = 0; taken = 0; v = 0; r = 0; i = 0; j = 0; k = 0; wanted = 0;
  has_progress = false; is_next = false; is_sum_right = false; is_whole = false; whole = 0
}

/* A perfect network: every timer fires once, and every packet arrives at once. */
inline be_calm() {
  place = 0;
  do
  :: w < N && i < P ->
    choose(w, i);
    if
    :: wanted != NOTHING ->
      aggregate(w, wanted);
      q = 0;
      do
      :: q < N && queue[N + q].num > 0 -> remove(N + q); hear(q, taken)
      :: q < N && queue[N + q].num == 0 -> q++
      :: q == N -> break
      od
    :: else
    fi;
    i++
  :: w < N && i == P -> i = 0; w++
  :: w == N -> break
  od
}

#define HAS_ENDED(x) ((got[x] & BIT(P - 1)) != 0)
#if N == 2
#define HAS_ROOM_DOWN (queue[2].num < C && queue[3].num < C)
#define HAVE_ALL_ENDED (HAS_ENDED(0) && HAS_ENDED(1))
#define NUM_PACKETS (queue[0].num + queue[1].num + queue[2].num + queue[3].num)
#else
#define HAS_ROOM_DOWN (queue[3].num < C && queue[4].num < C && queue[5].num < C)
#define HAVE_ALL_ENDED (HAS_ENDED(0) && HAS_ENDED(1) && HAS_ENDED(2))
#define NUM_PACKETS (queue[0].num + queue[1].num + queue[2].num + queue[3].num + queue[4].num + queue[5].num)
#endif

active proctype world() {
  do
  :: !HAVE_ALL_ENDED -> atomic { /* a worker sends, for the first time or again */
      select(w : 0 .. N - 1);
      select(i : 0 .. P - 1);
      d_step {
        choose(w, i);
        if
        :: wanted != NOTHING && queue[w].num < C -> put(w, wanted)
        :: else
        fi;
        forget_scratch()
      }
    }
  :: NUM_PACKETS > 0 -> atomic { /* a packet arrives, arrives and is repeated later, or is lost */
      select(q : 0 .. 2 * N - 1);
      select(place : 0 .. C - 1);
      select(fate : 0 .. 2);
      d_step {
        if
        :: place >= queue[q].num || (q < N && fate != 2 && !HAS_ROOM_DOWN) /* later */
        :: else ->
          if
          :: fate == 1 -> taken = queue[q].packet[place]
          :: else -> remove(q)
          fi;
          if
          :: fate == 2
          :: fate != 2 && q < N -> aggregate(q, taken)
          :: else -> hear(q - N, taken)
          fi
        fi;
        forget_scratch()
      }
    }
  :: NUM_PACKETS == 0 && !HAVE_ALL_ENDED -> d_step {
      be_calm();
      assert(has_progress); /* stuck */
      forget_scratch()
    }
  :: HAVE_ALL_ENDED && NUM_PACKETS == 0 -> break
  od
}
