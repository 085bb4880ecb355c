/* SPDX-License-Identifier: Apache-2.0
 * Stacks, and switching between them: a few instructions, because a run does it millions of times. */
#include "sim/internal.h"

#include <sys/mman.h>

#if defined(SML_SANITIZE_ADDRESS)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
static const void *scheduler_stack;
static size_t scheduler_stack_bytes;
static void *scheduler_fake_stack;
#endif

#define GUARD_BYTES ((size_t)64 << 10)

struct free_stack {
  struct free_stack *next;
};
static struct free_stack *free_stacks;

#if defined(__x86_64__)

/* Saves what a callee must keep, floating point modes included, and takes up the other's. */
void sim_context_swap(void **save, void *load);
__asm__(
    ".text\n.p2align 4\n.globl sim_context_swap\n.hidden sim_context_swap\n"
    ".type sim_context_swap, @function\n"
    "sim_context_swap:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  subq $8, %rsp\n  stmxcsr (%rsp)\n  fnstcw 4(%rsp)\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  ldmxcsr (%rsp)\n  fldcw 4(%rsp)\n  addq $8, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size sim_context_swap, . - sim_context_swap\n");

static void *first_frame(uint8_t *top, void (*entry)(void)) {
  uint64_t *sp = (uint64_t *)(void *)top - 1; /* a return address that is never used, where a call leaves it */
  *--sp = (uint64_t)(uintptr_t)entry;
  sp -= 6;
  *--sp = UINT64_C(0x037f00001f80); /* x87 control word, MXCSR: the defaults */
  return sp;
}

#elif defined(__aarch64__)

void sim_context_swap(void **save, void *load);
__asm__(
    ".text\n.p2align 4\n.globl sim_context_swap\n.hidden sim_context_swap\n"
    ".type sim_context_swap, %function\n"
    "sim_context_swap:\n"
    "  sub sp, sp, #176\n"
    "  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n"
    "  stp d14, d15, [sp, #144]\n  mrs x9, fpcr\n  str x9, [sp, #160]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldr x9, [sp, #160]\n  msr fpcr, x9\n"
    "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n"
    "  ldp d14, d15, [sp, #144]\n  add sp, sp, #176\n  ret\n"
    ".size sim_context_swap, . - sim_context_swap\n");

static void *first_frame(uint8_t *top, void (*entry)(void)) {
  uint64_t *sp = (uint64_t *)(void *)top - 22; /* all zero, fpcr too */
  sp[11] = (uint64_t)(uintptr_t)entry;         /* x30 */
  return sp;
}

#else
#error "the simulator needs a context switch for this processor"
#endif

static void *scheduler_stack_pointer;

static uint8_t *take_stack(void) {
  if (free_stacks != NULL) {
    struct free_stack *stack = free_stacks;
    free_stacks = stack->next;
    return (uint8_t *)stack;
  }
  uint8_t *memory = mmap(NULL, GUARD_BYTES + SIM_STACK_BYTES, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SML_ASSERT(memory != MAP_FAILED && mprotect(memory, GUARD_BYTES, PROT_NONE) == 0);
  return memory + GUARD_BYTES;
}

void sim_context_create(struct sim_context *context, void (*entry)(void)) {
  context->stack = take_stack();
  uint8_t *top = context->stack + SIM_STACK_BYTES;
  memset(top - 256, 0, 256);
  context->stack_pointer = first_frame(top, entry);
  context->fake_stack = NULL;
}

void sim_context_release(struct sim_context *context) {
  if (context->stack == NULL) return;
#ifdef SML_SANITIZE_ADDRESS
  /* Frames that were never left have poisoned what surrounds their variables. */
  ASAN_UNPOISON_MEMORY_REGION(context->stack, SIM_STACK_BYTES);
#endif
  struct free_stack *stack = (struct free_stack *)(void *)context->stack;
  stack->next = free_stacks;
  free_stacks = stack;
  context->stack = NULL;
}

void sim_context_enter(struct sim_context *context) {
#ifdef SML_SANITIZE_ADDRESS
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, context->stack, SIM_STACK_BYTES);
#endif
  sim_context_swap(&scheduler_stack_pointer, context->stack_pointer);
#ifdef SML_SANITIZE_ADDRESS
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, NULL, NULL);
#endif
}

void sim_context_leave(struct sim_context *context, bool is_final) {
#ifdef SML_SANITIZE_ADDRESS
  __sanitizer_start_switch_fiber(is_final ? NULL : &context->fake_stack, scheduler_stack, scheduler_stack_bytes);
#else
  (void)is_final;
#endif
  sim_context_swap(&context->stack_pointer, scheduler_stack_pointer);
#ifdef SML_SANITIZE_ADDRESS
  __sanitizer_finish_switch_fiber(context->fake_stack, NULL, NULL);
#endif
}

void sim_context_begin(void) {
#ifdef SML_SANITIZE_ADDRESS
  __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_stack_bytes);
#endif
}
