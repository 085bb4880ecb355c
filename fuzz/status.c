/* SPDX-License-Identifier: Apache-2.0
 * What `switchml status` and `top` make of an aggregator's answer. Input: a byte of how, then the answers: control
 * messages as they come, or (bit 0) texts of JSON, which then come in messages that are right, each to a question. */
#include "cli/status/status.h"
#include "ctl/message.h"
#include "fuzz/peer.h"

static struct fuzz_input answers;
static const uint8_t *text; /* that is being told */
static uint32_t text_bytes;

/* A question asks for the text from an offset on; a new text begins at 0. */
static void answer_question(const uint8_t *bytes, size_t num_bytes) {
  struct sml_ctl_message question, m = {.kind = SML_CTL_STATUS_PART};
  size_t consumed;
  uint8_t frame[SML_CTL_FRAME_BYTES + SML_CTL_MAX_BODY];
  if (sml_ctl_decode(bytes, num_bytes, &question, &consumed) != SML_CTL_DECODED) return;
  if (question.kind != SML_CTL_STATUS) return;
  const uint32_t offset = question.u.status.offset_bytes;
  if (offset == 0) {
    const uint32_t left_bytes = (uint32_t)(answers.end - answers.at);
    const uint8_t *end = left_bytes == 0 ? NULL : memchr(answers.at, 0, left_bytes);
    text = answers.at;
    text_bytes = end == NULL ? left_bytes : (uint32_t)(end - answers.at);
    answers.at += text_bytes + (end != NULL);
  }
  CHECK(offset <= text_bytes, "byte %u of %u is asked for", offset, text_bytes);
  struct sml_ctl_status_part *part = &m.u.status_part;
  part->total_bytes = text_bytes;
  part->offset_bytes = offset;
  part->num_bytes = (uint16_t)sml_min_u32(text_bytes - offset, 300);
  if (part->num_bytes > 0) memcpy(part->text, text + offset, part->num_bytes);
  fuzz_peer_say(frame, sml_ctl_encode(&m, frame, sizeof frame));
}

static json_t *fetch(const struct sml_status_source *source) {
  char error[512] = "";
  json_t *status = sml_status_fetch(source, error, sizeof error);
  CHECK(status != NULL || (error[0] != 0 && strnlen(error, sizeof error) < sizeof error), "no reason given");
  return status;
}

/* What goes to a terminal has lines and words, and no commands to it. */
static void check_print(const json_t *status, bool has_ranks, uint32_t columns) {
  char *out = NULL;
  size_t num_bytes = 0;
  FILE *stream = open_memstream(&out, &num_bytes);
  CHECK(stream != NULL && sml_status_print(stream, status, has_ranks, columns) && fclose(stream) == 0, "not printed");
  for (size_t i = 0; i < num_bytes; i++)
    CHECK(out[i] == '\n' || ((uint8_t)out[i] >= 0x20 && out[i] != 0x7f), "byte %02x at %zu", (uint8_t)out[i], i);
  free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t num_bytes) {
  const struct sml_status_source source = {.text = "127.0.0.1:48879", .addr = fuzz_addr(INADDR_LOOPBACK, 48879)};
  answers = (struct fuzz_input){data, data + num_bytes};
  const uint8_t how = fuzz_u8(&answers);
  fuzz_peer_begin(how & 1 ? answer_question : NULL, how >> 4);
  if ((how & 1) == 0) fuzz_peer_say(answers.at, (size_t)(answers.end - answers.at));
  json_t *before = fetch(&source), *now = before == NULL ? NULL : fetch(&source);
  if (now != NULL) {
    sml_status_add_rates(now, before);
    const enum sml_status_exit result = sml_status_judge(now);
    CHECK(result == SML_STATUS_HEALTHY || result == SML_STATUS_TROUBLE, "%d", (int)result);
    check_print(now, true, how >> 1);
    if (sml_status_keep_job(now, "a")) check_print(now, false, 0);
  } else if (before != NULL) {
    check_print(before, true, 0);
  }
  json_decref(before);
  json_decref(now);
  return 0;
}
