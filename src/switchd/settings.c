/* SPDX-License-Identifier: Apache-2.0 */
#include "switchd/settings.h"

#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "aggd/key_reader.h"
#include "dataplane/switches.h"
#include "switchd/config.h"
#include "switchd/http_host.h"

#define MAX_BMV2_LANES 128u /* docs/p4.md, What ran where */
#define SECTION_OF_TENANT "tenant "

enum { STATUS_NO_KEYS = 1, STATUS_USAGE = 2 };

struct reading {
  struct sml_settings *s;
  bool is_reload; /* names of hosts and interfaces are not looked up: what they mean counts from a start on */
  uint32_t num_tenants, num_keys;
  int status;
  char *error;
  size_t error_bytes, used_bytes; /* of it */
  uint32_t num_told;
};

#define MAX_TOLD 20u

/* What is wrong is told all at once, a line each; if there is too much of it, that is said. */

__attribute__((format(printf, 3, 4))) static bool fail(struct reading *r, int status, const char *format, ...) {
  static const char more[] = "\nand more";
  const size_t room = r->error_bytes - sizeof more, start = r->used_bytes;
  va_list args;
  r->status = status;
  if (r->num_told > MAX_TOLD) return false;
  r->num_told++;
  if (start > 0 && start < room) r->error[r->used_bytes++] = '\n';
  va_start(args, format);
  const int num_bytes = vsnprintf(r->error + r->used_bytes, room - r->used_bytes, format, args);
  va_end(args);
  r->used_bytes += (size_t)num_bytes;
  if (start == 0) r->used_bytes = sml_min_u64(r->used_bytes, room - 1);
  if (r->num_told <= MAX_TOLD && r->used_bytes < room) return false;
  r->num_told = MAX_TOLD + 1;
  memcpy(r->error + start, more, sizeof more);
  return false;
}

/* --- keys --- */

/* No copy of a key is left behind. */
static bool grow_keys(struct reading *r, uint32_t num_more) {
  struct sml_key_entry *keys = calloc(r->num_keys + num_more + 1u, sizeof *keys);
  if (!keys) return false;
  if (r->s->keys) {
    memcpy(keys, r->s->keys, r->num_keys * sizeof *keys);
    sml_keys_free(r->s->keys, r->num_keys);
  }
  r->s->keys = keys;
  return true;
}

/* Adds those keys of a file that `only` names (NULL: all of them); where: who names the file. */
static bool add_keys(struct reading *r, const char *path, const char *only, const char *where) {
  char error[512];
  uint32_t num_read = 0, num_added = 0;
  struct sml_key_entry *read = sml_keys_read(path, &num_read, error, sizeof error);
  if (!read) return fail(r, STATUS_NO_KEYS, "%s", error);
  const struct sml_key_entry *twice = NULL;
  const bool has_room = grow_keys(r, num_read);
  for (uint32_t i = 0; has_room && i < num_read; i++) {
    if (only && strcmp(read[i].name, only) != 0) continue;
    if (sml_key_find(r->s->keys, r->num_keys, read[i].name)) twice = &read[i];
    else r->s->keys[r->num_keys++] = read[i];
    num_added++;
  }
  if (!has_room) fail(r, STATUS_NO_KEYS, "cannot read key file %s: out of memory", path);
  if (twice) fail(r, STATUS_NO_KEYS, "%s: the key %s stands in another key file, too", where, twice->name);
  sml_keys_free(read, num_read);
  if (!has_room || twice) return false;
  if (num_added == 0) return fail(r, STATUS_NO_KEYS, "%s: there is no key %s in %s", where, only, path);
  return true;
}

/* --- the file --- */

static bool is_tenant_name(const char *name) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-";
  if (strcmp(name, SML_ANY_TENANT) == 0) return true;
  return name[0] && strlen(name) < SML_KEY_NAME_BYTES && name[strspn(name, letters)] == 0;
}

/* NULL: there is no such tenant, and no section of that kind. */
static struct sml_tenant *find_tenant(struct reading *r, const char *section) {
  if (strncmp(section, SECTION_OF_TENANT, strlen(SECTION_OF_TENANT)) != 0) return NULL;
  const char *name = section + strlen(SECTION_OF_TENANT);
  while (*name == ' ') name++;
  for (uint32_t i = 0; i < r->num_tenants; i++)
    if (strcmp(r->s->tenants[i].name, name) == 0) return &r->s->tenants[i];
  if (!is_tenant_name(name)) return NULL;
  struct sml_tenant *tenant = &r->s->tenants[r->num_tenants++];
  snprintf(tenant->name, sizeof tenant->name, "%.*s", (int)sizeof tenant->name - 1, name);
  return tenant;
}

static bool take_section(struct reading *r, const struct sml_config_line *line) {
  if (find_tenant(r, line->section)) return true;
  if (strncmp(line->section, SECTION_OF_TENANT, strlen(SECTION_OF_TENANT)) == 0)
    return fail(r, STATUS_USAGE, "%s:%u: a tenant's name has 1 to 31 letters, digits and . _ : / - or is *",
                r->s->config_path, line->number);
  return fail(r, STATUS_USAGE, "%s:%u: unknown section [%s]: there is [tenant NAME]; options come before all sections",
              r->s->config_path, line->number, line->section);
}

#define SML_OPTIONS struct sml_quota
static const struct sml_option quota_table[] = {{"jobs", SML_NUMBER(max_jobs, 1, SML_AGGD_MAX_JOBS)},
                                                {"workers", SML_NUMBER(max_workers, 2, 65536)},
                                                {"slots", SML_NUMBER(max_slots, 32, SML_AGGD_MAX_SLOTS)},
                                                {0}};

static bool take_of_tenant(struct reading *r, const struct sml_config_line *line) {
  struct sml_tenant *tenant = find_tenant(r, line->section);
  if (!tenant) return take_section(r, line);
  char reason[160], where[4096 + 32];
  snprintf(where, sizeof where, "%s:%u", r->s->config_path, line->number);
  if (strcmp(line->name, "key-file") == 0) {
    if (strcmp(tenant->name, SML_ANY_TENANT) == 0)
      return fail(r, STATUS_USAGE, "%s: key-file is for one tenant, not for [tenant *]", where);
    return add_keys(r, line->value, tenant->name, where);
  }
  for (const struct sml_option *o = quota_table; o->name != NULL; o++) {
    if (strcmp(line->name, o->name) != 0) continue;
    if (*(const uint32_t *)((const char *)&tenant->quota + o->offset) != 0)
      return fail(r, STATUS_USAGE, "%s: %s stands here twice", where, line->name);
    return sml_option_take(o, line->value, &tenant->quota, reason, sizeof reason) ||
           fail(r, STATUS_USAGE, "%s: %s: %s", where, line->name, reason);
  }
  return fail(r, STATUS_USAGE, "%s: a tenant has no '%s': there are jobs, workers, slots and key-file", where,
              line->name);
}

static bool take_line(struct reading *r, struct sml_option_texts *texts, const struct sml_config_line *line) {
  const char *nearest, *path = r->s->config_path;
  if (!line->name) return take_section(r, line);
  if (line->section[0]) return take_of_tenant(r, line);
  const uint32_t i = sml_option_find(line->name, &nearest);
  if (i == SML_MAX_OPTIONS)
    return fail(r, STATUS_USAGE, "%s:%u: there is no option '%s'%s%s%s", path, line->number, line->name,
                nearest ? ": do you mean '" : "; switchmld --help has them all", nearest ? nearest : "",
                nearest ? "'?" : "");
  if (texts->texts[i] && !(sml_daemon_options[i].marks & SML_LIST))
    return fail(r, STATUS_USAGE, "%s:%u: %s stands in line %u already", path, line->number, line->name,
                texts->lines[i]);
  texts->lines[i] = line->number;
  return sml_option_note(i, line->value, texts) || fail(r, STATUS_USAGE, "out of memory for %s", path);
}

/* By line: of each what it means, or that it is none. */
static bool take_lines(struct reading *r, struct sml_option_texts *texts) {
  const struct sml_config *c = r->s->config;
  bool are_taken = true;
  uint32_t p = 0;
  for (size_t i = 0; i < c->num_lines || p < c->num_problems;) {
    const struct sml_config_problem *problem = &c->problems[p];
    if (p == c->num_problems || (i < c->num_lines && c->lines[i].number <= problem->number)) {
      if (!take_line(r, texts, &c->lines[i++])) are_taken = false;
    } else {
      are_taken = fail(r, STATUS_USAGE, "%s:%u: %s", r->s->config_path, problem->number, problem->text);
      p++;
    }
  }
  return are_taken;
}

/* What the command line says stays. */
static bool take_file(struct reading *r) {
  char error[512];
  struct sml_settings *s = r->s;
  struct sml_option_texts texts = {0};
  s->config = sml_config_read(s->config_path, error, sizeof error);
  if (!s->config) return fail(r, STATUS_USAGE, "%s", error);
  s->tenants = calloc(s->config->num_lines + 1, sizeof *s->tenants);
  if (!s->tenants) return fail(r, STATUS_USAGE, "out of memory for %s", s->config_path);
  const bool is_taken = take_lines(r, &texts);
  if (!s->texts.list) s->texts.list = texts.list;
  else free(texts.list);
  for (uint32_t i = 0; sml_daemon_options[i].name != NULL; i++) {
    if (s->texts.texts[i]) continue;
    s->texts.texts[i] = texts.texts[i];
    s->texts.lines[i] = texts.lines[i];
  }
  return is_taken;
}

/* --- all --- */

/* Where the option was set, for sentences. */
static const char *place_of(const struct sml_settings *s, const char *name, char *text, size_t text_bytes) {
  const char *nearest;
  const uint32_t i = sml_option_find(name, &nearest);
  if (i != SML_MAX_OPTIONS && s->texts.lines[i] > 0)
    snprintf(text, text_bytes, "%s:%u: %s", s->config_path, s->texts.lines[i], name);
  else snprintf(text, text_bytes, "--%s", name);
  return text;
}

static bool take_options(struct reading *r) {
  char reason[256], place[4096];
  bool are_taken = true;
  for (uint32_t i = 0; sml_daemon_options[i].name != NULL; i++) {
    const char *text = r->s->texts.texts[i];
    if (!text || sml_option_take(&sml_daemon_options[i], text, r->s, reason, sizeof reason)) continue;
    are_taken =
        fail(r, STATUS_USAGE, "%s: %s", place_of(r->s, sml_daemon_options[i].name, place, sizeof place), reason);
  }
  return are_taken;
}

static bool parse_addr(const struct reading *r, const char *text, uint16_t default_port, struct sml_addr *addr_out,
                       char *reason, size_t reason_bytes) {
  return (r->is_reload ? sml_addr_check : sml_addr_parse)(text, default_port, addr_out, reason, reason_bytes);
}

static bool take_multicast(struct reading *r) {
  char reason[256], place[4096];
  struct sml_settings *s = r->s;
  struct sml_multicast *m = &s->aggd.multicast;
  if (s->multicast && !sml_multicast_parse(s->multicast, m, reason, sizeof reason))
    return fail(r, STATUS_USAGE, "%s: %s", place_of(s, "multicast", place, sizeof place), reason);
  if (s->multicast && s->aggd.listen.num_bytes > 0 && m->first.num_bytes != s->aggd.listen.num_bytes)
    return fail(r, STATUS_USAGE, "--multicast and --listen must both be IPv4 or both IPv6");
  if (s->multicast_interface && !r->is_reload && !sml_multicast_find_interface(s->multicast_interface, &m->interface))
    return fail(r, STATUS_USAGE, "%s: no interface has the name or address '%s'",
                place_of(s, "multicast-interface", place, sizeof place), s->multicast_interface);
  return true;
}

static bool take_switch(struct reading *r) {
  char reason[256], place[4096];
  struct sml_settings *s = r->s;
  if (s->dataplane == SML_SOFTWARE) return true;
  const bool is_bmv2 = s->dataplane == SML_BMV2, is_tofino = s->dataplane == SML_TOFINO;
  if (!s->switch_runtime) s->switch_runtime = is_bmv2 || is_tofino ? "127.0.0.1" : "/run/switchml-pipeline";
  if (is_tofino && !sml_tofino_is_built())
    return fail(r, STATUS_USAGE, "%s: this switchmld was built without libnghttp2, by which it would speak to a tofino",
                place_of(s, "dataplane", place, sizeof place));
  if (s->aggd.packet_lanes == 0 || s->aggd.num_lanes > 1)
    return fail(r, STATUS_USAGE, "%s: %s goes with --switch-format, as the program has it, and one lane",
                place_of(s, "dataplane", place, sizeof place), sml_dataplane_names[s->dataplane]);
  if (!is_bmv2 && !is_tofino) return true;
  if (is_bmv2 && s->aggd.packet_lanes > MAX_BMV2_LANES)
    return fail(r, STATUS_USAGE,
                "%s: bmv2 takes at most %u lanes: answers to questions grow by more than a simple_switch has room for",
                place_of(s, "dataplane", place, sizeof place), MAX_BMV2_LANES);
  const uint16_t port = is_tofino ? SML_TOFINO_PORT : SML_BMV2_PORT;
  if (parse_addr(r, s->switch_runtime, port, &s->switch_addr, reason, sizeof reason)) return true;
  return fail(r, STATUS_USAGE, "%s: %s", place_of(s, "switch", place, sizeof place), reason);
}

static bool take_networks(struct reading *r) {
  char place[4096], text[64];
  struct sml_settings *s = r->s;
  uint32_t room = 1;
  for (const char *c = s->allow ? s->allow : ""; *c; c++) room += *c == ',';
  s->networks = calloc(room, sizeof *s->networks);
  if (!s->networks) return fail(r, STATUS_USAGE, "out of memory for %u networks", room);
  for (const char *at = s->allow; at; at = at[0] == ',' ? at + 1 : NULL) {
    const size_t num_chars = strcspn(at, ",");
    snprintf(text, sizeof text, "%.*s", (int)num_chars, at);
    if (num_chars >= sizeof text || !sml_network_parse(text, &s->networks[s->aggd.num_networks++]))
      return fail(r, STATUS_USAGE, "%s: '%s' is no network, as in 10.1.0.0/16 or 2001:db8::/32",
                  place_of(s, "allow", place, sizeof place), text);
    at += num_chars;
  }
  s->aggd.networks = s->networks;
  return true;
}

static bool take_listen(struct reading *r) {
  char reason[256], place[4096];
  struct sml_settings *s = r->s;
  struct sml_addr *addr = &s->aggd.listen;
  const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)addr->bytes;
  if (!parse_addr(r, s->listen, 0, addr, reason, sizeof reason))
    return fail(r, STATUS_USAGE, "%s: %s", place_of(s, "listen", place, sizeof place), reason);
  if (s->dataplane == SML_SOFTWARE || addr->num_bytes == 0 || (in->sin_family == AF_INET && in->sin_addr.s_addr != 0))
    return true;
  return fail(r, STATUS_USAGE, "%s: with %s it must be the IPv4 address by which ranks reach this host",
              place_of(s, "listen", place, sizeof place), sml_dataplane_names[s->dataplane]);
}

static bool take_addresses(struct reading *r) {
  struct sml_settings *s = r->s;
  char reason[256], place[4096];
  bool is_fine = take_listen(r);
  is_fine = (!is_fine || take_multicast(r)) && is_fine;
  if (s->http && !parse_addr(r, s->http, 0, &s->http_addr, reason, sizeof reason))
    is_fine = fail(r, STATUS_USAGE, "%s: %s", place_of(s, "http", place, sizeof place), reason);
  return is_fine;
}

/* What texts mean together. */
static bool finish(struct reading *r) {
  struct sml_settings *s = r->s;
  char reason[256], place[4096];
  bool is_fine = take_addresses(r);
  is_fine = take_switch(r) && is_fine;
  is_fine = take_networks(r) && is_fine;
  if (s->http_host && !sml_http_host_names_are_valid(s->http_host))
    is_fine = fail(r, STATUS_USAGE, "%s: names of hosts with commas between them, without ports, as in agg,agg.example",
                   place_of(s, "http-host", place, sizeof place));
  if (s->aggd.first_data_port && s->aggd.first_data_port + s->aggd.num_lanes - 1 > 65535)
    is_fine = fail(r, STATUS_USAGE, "%s: %u lanes from port %u on don't end at 65535",
                   place_of(s, "data-port", place, sizeof place), s->aggd.num_lanes, s->aggd.first_data_port);
  if (!sml_faults_parse(getenv("SWITCHML_FAULTS"), &s->aggd.faults, reason, sizeof reason))
    is_fine = fail(r, STATUS_USAGE, "SWITCHML_FAULTS: %s", reason);
  if (s->key_file && !add_keys(r, s->key_file, NULL, place_of(s, "key-file", place, sizeof place))) is_fine = false;
  if (s->aggd.packet_lanes > 0 && (r->num_keys > 0 || s->multicast))
    is_fine = fail(r, STATUS_USAGE, "%s: in switch format there are neither keys nor multicast: leave %s away",
                   place_of(s, "switch-format", place, sizeof place), r->num_keys > 0 ? "key-file" : "multicast");
  s->aggd.keys = s->keys;
  s->aggd.num_keys = r->num_keys;
  s->aggd.tenants = s->tenants;
  s->aggd.num_tenants = r->num_tenants;
  return is_fine;
}

static bool read_all(struct reading *r, int argc, char **argv) {
  struct sml_settings *s = r->s;
  const char *cpus = getenv("SWITCHML_CPUS");
  sml_settings_parse(argc, argv, &s->texts);
  if (cpus && *cpus && !sml_cpus_parse(cpus, &s->aggd.cpus))
    return fail(r, STATUS_USAGE, "SWITCHML_CPUS: '%s' is no list of processors, as in 0-3,8", cpus);
  if (!take_options(r)) return false; /* --config among them */
  if (!s->config_path) return finish(r);
  const bool is_file_taken = take_file(r);
  return take_options(r) && is_file_taken && finish(r);
}

int sml_settings_read(int argc, char **argv, bool is_reload, struct sml_settings *s, char *error, size_t error_bytes) {
  struct reading r = {.s = s, .is_reload = is_reload, .error = error, .error_bytes = error_bytes};
  *s = (struct sml_settings){.listen = SML_DEFAULT_LISTEN,
                             .log_level = SML_LOG_INFO,
                             .switch_program = "switchml",
                             .aggd = {.num_lanes = 1,
                                      .max_connections = 1024,
                                      .max_datagram_bytes = SML_DEFAULT_MAX_DATAGRAM,
                                      .max_lease_ns = SML_DEFAULT_MAX_LEASE_S * SML_NS_PER_S,
                                      .max_join_ns = SML_DEFAULT_MAX_JOIN_S * SML_NS_PER_S,
                                      .trace_level = SML_TRACE_NOTABLE}};
  const bool is_read = read_all(&r, argc, argv);
  s->aggd.num_keys = r.num_keys; /* so that they are wiped, too, if it failed */
  return is_read ? 0 : r.status;
}

void sml_settings_drop_keys(struct sml_settings *s) {
  if (s->keys) sml_keys_free(s->keys, s->aggd.num_keys);
  s->keys = NULL;
  s->aggd.keys = NULL;
}

void sml_settings_clear(struct sml_settings *s) {
  sml_settings_drop_keys(s);
  free(s->tenants);
  s->tenants = NULL;
  free(s->networks);
  s->networks = NULL;
  free(s->texts.list);
  s->texts.list = NULL;
  sml_config_free(s->config);
  s->config = NULL;
}

static void warn_of_options(const struct sml_settings *s) {
  const bool has_switch = s->dataplane != SML_SOFTWARE;
  const struct {
    const char *name, *text;
    bool has_effect;
  } rows[] = {{"multicast-interface", "it counts only with --multicast", s->multicast != NULL},
              {"multicast-ttl", "it counts only with --multicast", s->multicast != NULL},
              {"http-host", "it counts only with --http", s->http != NULL},
              {"switch", "it counts only with --dataplane", has_switch},
              {"switch-cpu-port", "it counts only with --dataplane", has_switch},
              {"switch-program", "it counts only with --dataplane tofino", s->dataplane == SML_TOFINO},
              {"end-withdrawn", "it counts only with --key-file", s->aggd.num_keys > 0 || !s->ends_withdrawn}};
  for (size_t i = 0; i < SML_ARRAY_LEN(rows); i++) {
    const char *nearest;
    const struct sml_log_field option = {"option", rows[i].name, 0};
    if (rows[i].has_effect || !s->texts.texts[sml_option_find(rows[i].name, &nearest)]) continue;
    sml_log_event(SML_LOG_WARNING, "without_effect", &option, 1, rows[i].text);
  }
}

void sml_settings_warn(const struct sml_settings *s) {
  warn_of_options(s);
  for (uint32_t i = 0; i < s->aggd.num_tenants; i++) {
    const char *name = s->tenants[i].name;
    const bool is_keyed = s->aggd.num_keys > 0;
    const bool is_known =
        is_keyed ? sml_key_find(s->keys, s->aggd.num_keys, name) != NULL : strcmp(name, SML_ONLY_TENANT) == 0;
    if (is_known || strcmp(name, SML_ANY_TENANT) == 0) continue;
    const struct sml_log_field tenant = {"tenant", name, 0};
    sml_log_event(SML_LOG_WARNING, "tenant_without_key", &tenant, 1,
                  is_keyed ? "its section has no effect: no key has that name"
                           : "its section has no effect: without keys all ranks are of the tenant " SML_ONLY_TENANT);
  }
}

void sml_settings_compare(const struct sml_settings *running, const struct sml_settings *now, char *text,
                          size_t text_bytes) {
  size_t used_bytes = 0;
  text[0] = 0;
  for (uint32_t i = 0; sml_daemon_options[i].name != NULL && used_bytes < text_bytes; i++) {
    const char *was = running->texts.texts[i], *is = now->texts.texts[i];
    const bool is_same = was && is ? strcmp(was, is) == 0 : was == is;
    if (is_same || (sml_daemon_options[i].marks & SML_LIVE)) continue;
    used_bytes += (size_t)snprintf(text + used_bytes, text_bytes - used_bytes, "%s%s", used_bytes ? ", " : "",
                                   sml_daemon_options[i].name);
  }
}
