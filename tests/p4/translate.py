#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""translate.py SOURCE.p4 NAME OUTPUT.c [-DWORD ...]: makes C of a switch program of p4/, to be run without any P4 tools.
OUTPUT defines `const struct p4_machine p4_NAME` (machine.h). All numbers are uint64_t; a control's parameters are
bound to the globals that its only caller gives it, so each instance becomes functions of its own.

What p4c refuses, or warns of, and has been written here is refused as well: casts of types of their own, names that
are declared twice, constants that nobody uses.

What no packet has written is noise, where the target does not promise zeros: metadata on TNA and PNA, fields of
headers that are not valid, local variables. So a program that reads what it never wrote does something else each time.
"""
import argparse
import os
import sys

from architectures import FOREIGN, GLUE, PARTS, SIZES
from p4_source import (ANY, Action, Assign, Binary, Call, Cast, Choice, Constant, Control, Evaluate, Fields, If,
                       Masked, Member, Name, Newtype, Number, Package, Parser, Slice, Switch, Table, Transition, Tuple,
                       Unary, Variable, read, refuse_duplicates)


def masked(text, width):
    return f"(({text}) & {(1 << width) - 1:#x}ull)"


class Entity:
    """What a name stands for: a value (of: a width, or a type's name), or an instance, action or table (of: its kind)."""

    def __init__(self, text, of, node=None):
        self.text, self.of, self.node = text, of, node


TRUTHS = {"true": Entity("1", 1), "false": Entity("0", 1)}


class Program:
    def __init__(self, declarations, target, name):
        self.target, self.name = target, name
        self.constants, self.types, self.blocks, self.code = dict(TRUTHS), {}, {}, []
        self.tables, self.registers, self.used = [], [], set()
        refuse_duplicates([each.name for each in declarations], "the program")
        for fields in [Fields("struct", of, each) for of, each in FOREIGN[target].items()] + declarations:
            if isinstance(fields, Fields):
                self.types[fields.name] = fields
        for each in declarations:
            if isinstance(each, Constant):
                self.constants[each.name] = Entity(self.expression(each.value, {})[0], each.width)
            elif isinstance(each, (Control, Parser)):
                self.blocks[each.name] = each
        packages = [each for each in declarations if isinstance(each, Package)]
        self.parts = [self.blocks[part.function.text] for part in packages[0].arguments]
        self.globals = dict(SIZES[target])
        for part, names in zip(self.parts, PARTS[target]):
            for (_, of), bound in zip(part.parameters, names):
                if of not in FOREIGN[target] and bound not in ("packet", "Q"):
                    self.globals[bound] = of

    # ---- expressions: (C text, what it is: a width, None for a number without, "bool", "result" or a type's name) ----

    def expression(self, e, scope):
        return getattr(self, "make_" + type(e).__name__.lower())(e, scope)

    def text(self, e, scope):
        return self.expression(e, scope)[0]

    def make_number(self, e, _):
        return f"{e.value:#x}ull", e.width

    def make_name(self, e, scope):
        found = scope.get(e.text) or self.constants.get(e.text)
        self.used.add(e.text)
        if found is None:
            raise NameError(e.text)
        return found.text, found.of

    def make_member(self, e, scope):
        if isinstance(e.of, Name) and e.of.text not in scope:
            return "0", None # of the compilers' own enumerations
        text, of = self.expression(e.of, scope)
        if of == "result":
            return f"{text}.{e.name}", "bool"
        return f"{text}.{e.name}", dict(self.types[of].fields)[e.name]

    def make_slice(self, e, scope):
        return masked(f"{self.text(e.of, scope)} >> {e.low}", e.high - e.low + 1), e.high - e.low + 1

    def make_cast(self, e, scope):
        text, of = self.expression(e.of, scope)
        if isinstance(of, Newtype) and e.width != of:
            raise TypeError(f"{e}: p4c casts a type of its own to a number of {of} bits only")
        return masked(text, e.width), e.width

    def make_unary(self, e, scope):
        text, of = self.expression(e.of, scope)
        if e.operator == "!":
            return f"!({text})", "bool"
        return masked(f"{e.operator}({text})", of), of

    def make_choice(self, e, scope):
        (yes, of), (no, other) = self.expression(e.yes, scope), self.expression(e.no, scope)
        return f"({self.text(e.condition, scope)} ? {yes} : {no})", of or other

    def make_binary(self, e, scope):
        (left, of), (right, other) = self.expression(e.left, scope), self.expression(e.right, scope)
        width = of if of is not None else other
        if e.operator == "++":
            return f"({left} << {other} | {right})", of + other
        if e.operator == "|-|":
            return f"({left} > {right} ? {left} - {right} : 0)", width
        if e.operator in ("==", "!=", "<", ">", "<=", ">=", "&&", "||"):
            return f"({left} {e.operator} {right})", "bool"
        if of not in (None, other) and other is not None and e.operator not in ("<<", ">>"):
            raise TypeError(f"{e}: {of} and {other} bits")
        text = f"({left} {e.operator} {right})"
        return (masked(text, width) if e.operator in "+-<<*" and width else text), width

    def make_call(self, e, scope):
        if isinstance(e.function, Name):
            return self.call_function(e.function.text, e.arguments, scope)
        of, method = e.function.of, e.function.name
        if method in ("isValid", "setValid", "setInvalid"):
            text = self.text(of, scope) + ".is_valid"
            return (text, "bool") if method == "isValid" else (f"{text} = {int(method == 'setValid')}", None)
        found = scope[of.text]
        return getattr(self, f"call_{found.of}")(found, method, e.arguments, scope)

    def call_function(self, name, arguments, scope):
        if name == "max":
            (left, width), (right, _) = (self.expression(each, scope) for each in arguments)
            return f"({left} > {right} ? {left} : {right})", width
        if name == "NoAction":
            return "(void)0", None
        if name == "mark_to_drop":
            return "(S.egress_spec = 511, S.mcast_grp = 0)", None
        if name == "send_to_port":
            return f"(O.is_dropped = 0, O.port = {self.text(arguments[0], scope)})", None
        if name == "drop_packet":
            return "(O.is_dropped = 1)", None
        if name == "mirror_packet":
            return "(void)0", None
        if name == "hash":
            fields = ", ".join(self.text(part, scope) for part in arguments[3].parts)
            return f"({self.text(arguments[0], scope)} = mix({fields}) % {self.text(arguments[4], scope)})", None
        if name in ("verify_checksum", "update_checksum"):
            return self.call_head_checksum(name, arguments, scope)
        return f"{scope[name].text}({', '.join(self.text(each, scope) for each in arguments)})", None

    def sum_of(self, parts, scope):
        adds = []
        for part in parts:
            text, of = self.expression(part, scope)
            fields = [(f"{text}.{name}", width) for name, width in self.types[of].fields] if isinstance(of, str) \
                else [(text, of)]
            adds += [f"checksum_add(&c, {width}, {each});" for each, width in fields]
        return f"({{ struct checksum c = {{0, 0}}; {' '.join(adds)} checksum_end(&c); }})"

    def call_head_checksum(self, name, arguments, scope):
        condition, field = self.text(arguments[0], scope), self.text(arguments[2], scope)
        made = self.sum_of(arguments[1].parts, scope)
        if name == "verify_checksum":
            return f"(S.checksum_error = ({condition}) && {field} != {made})", None
        return f"({condition} ? (void)({field} = {made}) : (void)0)", None

    def call_checksum(self, found, method, arguments, scope):
        """TNA: update and verify, and PNA: clear, add, get."""
        if method == "update":
            return self.sum_of(arguments[0].parts, scope), 16
        if method == "clear":
            return f"({found.text} = (struct checksum){{0, 0}})", None
        if method == "get":
            return f"checksum_end(&{found.text})", 16
        if method == "verify":
            return f"(checksum_end(&{found.text}) != 0)", "bool"
        text, of = self.expression(arguments[0], scope)
        adds = [f"checksum_add(&{found.text}, {width}, {text}.{name});" for name, width in self.types[of].fields]
        fresh = f"{found.text} = (struct checksum){{0, 0}}; " if self.target == "tna" else "" # a parser's, of one header
        return f"({{ {fresh}{' '.join(adds)} }})", None

    def call_packet(self, _, method, arguments, scope):
        if method == "advance":
            return "(void)0", None
        text, of = self.expression(arguments[0], scope)
        if method == "emit":
            parts = [text] if self.types[of].kind == "header" else [f"{text}.{name}" for name, _ in self.types[of].fields]
            kinds = [of] if self.types[of].kind == "header" else [kind for _, kind in self.types[of].fields]
            return "({ " + " ".join(f"put_{kind}(&{part});" for part, kind in zip(parts, kinds)) + " })", None
        if self.types[of].kind == "struct":
            return "(void)0", None # intrinsic metadata are not in the bytes here
        return f"({{ if (!take_{of}(&{text})) return false; }})", None

    def call_table(self, found, _method, _arguments, _scope):
        return f"{found.text}()", "result"

    def call_control(self, found, _method, arguments, scope):
        bound = [self.expression(each, scope) for each in arguments]
        return f"{self.control(found.node, bound, found.text)}()", None

    def call_register(self, found, method, arguments, scope):
        width = found.node
        values = [self.text(each, scope) for each in arguments]
        if method == "write":
            return f"({found.text}[at(&{found.text}_cells, {values[0]}, false)] = {values[1]})", None
        if len(values) == 1:
            return f"{found.text}[at(&{found.text}_cells, {values[0]}, false)]", width
        return f"({values[0]} = {found.text}[at(&{found.text}_cells, {values[1]}, false)])", None

    def call_register_action(self, found, _method, arguments, scope):
        return f"{found.text}({self.text(arguments[0], scope)})", found.node

    def call_hash(self, found, _method, arguments, scope):
        text = None
        for part in arguments[0].parts:
            each, width = self.expression(part, scope)
            text = each if text is None else f"({text} << {width} | {each})"
        return masked(text, found.node), found.node

    def call_counter(self, found, _method, arguments, scope):
        return f"{found.text}[at(&{found.text}_cells, {self.text(arguments[0], scope)}, false)]++", None

    # ---- statements ----

    def statements(self, body, scope, indent="  "):
        scope, lines = dict(scope), []
        for s in body:
            lines += [indent + line for line in getattr(self, "write_" + type(s).__name__.lower())(s, scope)]
        return lines

    def write_assign(self, s, scope):
        target, width = self.expression(s.target, scope)
        value, of = self.expression(s.value, scope)
        if of not in (None, width, "bool"):
            raise TypeError(f"{s}: {of} bits to {width}")
        return [f"{target} = {value};"]

    def write_variable(self, s, scope):
        value = self.text(s.value, scope) if s.value else masked("draw()", s.width)
        scope[s.name] = Entity(f"v_{s.name}", s.width)
        return [f"uint64_t v_{s.name} = {value};"]

    def write_if(self, s, scope):
        lines = [f"if ({self.text(s.condition, scope)}) {{", *self.statements(s.yes, scope), "}"]
        return lines + (["else {", *self.statements(s.no, scope), "}"] if s.no else [])

    def write_switch(self, s, scope):
        table = scope[s.table.of.function.of.text]
        lines = [f"switch ({self.text(s.table.of, scope)}.action) {{"]
        for names, body in s.cases:
            lines += [f"case {table.node.actions.index(name)}:" for name in names]
            lines += ["{", *self.statements(body, scope), "  break;", "}"]
        return lines + ["}"]

    def write_evaluate(self, s, scope):
        return [self.text(s.call, scope) + ";"]

    def condition(self, texts, patterns, scope):
        """That values are as patterns say."""
        parts = []
        for text, pattern in zip(texts, patterns):
            if isinstance(pattern, Masked):
                mask = self.text(pattern.mask, scope)
                parts.append(f"({text} & {mask}) == ({self.text(pattern.value, scope)} & {mask})")
            elif pattern != ANY:
                parts.append(f"{text} == {self.text(pattern, scope)}")
        return " && ".join(parts) or "true"

    def write_transition(self, s, scope):
        keys, lines = [self.text(key, scope) for key in s.keys], []
        for patterns, state in s.cases:
            go = {"accept": "return true;", "reject": "return false;"}.get(state, f"goto {state};")
            lines.append(go if patterns is None else f"if ({self.condition(keys, patterns, scope)}) {go}")
        return lines if s.cases[-1][0] is None else lines + ["return false;"]

    # ---- declarations ----

    def define(self, head, lines):
        self.code.append("\n".join([head + " {", *lines, "}", ""]))

    def action(self, action, scope, path):
        name = f"{path}_{action.name}"
        inner = {**scope, **{each: Entity(f"v_{each}", width) for each, width in action.parameters}}
        self.define(f"static void {name}({', '.join(f'uint64_t v_{each}' for each, _ in action.parameters) or 'void'})",
                    self.statements(action.body, inner))
        return Entity(name, "action", action)

    def run_action(self, call, scope):
        return self.text(call if isinstance(call, Call) else Call(call, []), scope) + ";"

    def table(self, table, scope, path):
        name = f"{path}_{table.name}"
        keys = [self.text(key, scope) for key, _, _ in table.keys]
        lines = [f"  const uint64_t keys[] = {{{', '.join(keys)}}};"]
        if table.entries is not None:
            for patterns, call in table.entries:
                used = call.function.text if isinstance(call, Call) else call.text
                condition = self.condition([f"keys[{i}]" for i in range(len(keys))], patterns, scope)
                lines += [f"  if ({condition}) {{", f"    {self.run_action(call, scope)}",
                          f"    return (struct result){{true, {table.actions.index(used)}}};", "  }"]
        else:
            self.dynamic_table(table, scope, name, lines)
        default = table.default if isinstance(table.default, Call) else Call(table.default, [])
        number = table.actions.index(default.function.text)
        lines += [f"  {self.run_action(default, scope)}", f"  return (struct result){{false, {number}}};"]
        self.define(f"static struct result {name}(void)", lines)
        return Entity(name, "table", table)

    def dynamic_table(self, table, scope, name, lines):
        shown = (table.shown or table.name).lstrip(".")
        actions = ", ".join(f'"{each}"' for each in table.actions)
        ternary = ", ".join(str(int(kind == "ternary")) for _, kind, _ in table.keys)
        self.code.append(f"static const char *const {name}_actions[] = {{{actions}}};\n"
                         f'static struct table {name}_table = {{"{shown}", {name}_actions, {len(table.actions)}, '
                         f"{len(table.keys)}, 0, {{{ternary}}}, {{{{{{0}}, {{0}}, {{0}}, 0}}}}}};\n")
        self.tables.append(f"{name}_table")
        lines += [f"  const struct entry *e = find(&{name}_table, keys);", "  if (e != NULL) {", "    switch (e->action) {"]
        for number, used in enumerate(table.actions):
            num = len(scope[used].node.parameters) if used in scope else 0
            call = f"{scope[used].text}({', '.join(f'e->data[{i}]' for i in range(num))});" if used in scope else ";"
            lines += [f"      case {number}: {call} break;"]
        lines += ["    }", "    return (struct result){true, e->action};", "  }"]

    def cells(self, name, shown, of, num, initial, is_once):
        """The C array of a register or counter, and its fields by name."""
        self.code.append(f"static {'uint64_t' if isinstance(of, int) else f'struct {of}'} {name}[{num}];\n"
                         f"static uint64_t {name}_touched;\n"
                         f'static const struct cells {name}_cells = {{"{shown}", {name}, sizeof {name}[0], {num}, 0, '
                         f"&{name}_touched}};\n")
        fields = [("", "", 0)] if isinstance(of, int) else \
            [(f".{field}", f".{field}", i) for i, (field, _) in enumerate(self.types[of].fields)]
        for dot, member, index in fields:
            value = initial[index] if index < len(initial) else "0"
            self.registers.append(f'{{"{shown}{dot}", &{name}[0]{member}, sizeof {name}[0], {num}, {value}, NULL}}')
        return is_once

    def instance(self, each, scope, path):
        name = f"{path}_{each.name}"
        shown = each.shown.lstrip(".") if each.shown else name.split("_", 1)[1]
        if each.type in ("register", "Register"):
            initial = [self.text(part, {}) for part in each.arguments[1].parts] if len(each.arguments) > 1 else []
            self.cells(name, shown, each.types[0], self.text(each.arguments[0], {}), initial, False)
            return Entity(name, "register", each.types[0])
        if each.type in ("counter", "Counter"):
            self.cells(name, shown, 64, self.text(each.arguments[0], {}), [], False)
            return Entity(name, "counter")
        if each.type == "RegisterAction":
            return self.register_action(each, scope, name)
        if each.type in ("InternetChecksum", "Checksum"):
            self.code.append(f"static __attribute__((unused)) struct checksum {name};\n")
            return Entity(name, "checksum")
        if each.type == "Hash":
            return Entity(name, "hash", each.types[0])
        return Entity(name, "control", self.blocks[each.type])

    def register_action(self, each, scope, name):
        """Registers of a Tofino: a packet may touch each once."""
        register, (parameters, body) = scope[each.arguments[0].text], each.body
        cell = Entity(f"{register.text}[i]", each.types[0])
        inner = {**scope, parameters[0][0]: cell}
        if len(parameters) > 1:
            inner[parameters[1][0]] = Entity("out", parameters[1][1])
        self.define(f"static uint64_t {name}(uint64_t i)",
                    ["  uint64_t out = 0;", f"  at(&{register.text}_cells, i, true);", *self.statements(body, inner),
                     "  return out;"])
        return Entity(name, "register_action", each.types[2] if len(each.types) > 2 else 32)

    def control(self, control, bound, path):
        """Functions for an instance with its parameters bound to (C text, type); returns the name of its apply."""
        scope = {name: Entity(text, of) for (name, _), (text, of) in zip(control.parameters, bound)}
        refuse_duplicates([*scope, *(each.name for each in control.locals)], control.name)
        for each in control.locals:
            make = self.action if isinstance(each, Action) else self.table if isinstance(each, Table) else self.instance
            scope[each.name] = make(each, scope, path)
        self.define(f"static void {path}_apply(void)", self.statements(control.apply, scope))
        return f"{path}_apply"

    def parser(self, parser, bound, path):
        scope = {name: Entity(text, of) for (name, _), (text, of) in zip(parser.parameters, bound)}
        scope.update({each.name: self.instance(each, scope, path) for each in parser.locals})
        lines = ["  goto start;"]
        for state, body in parser.states.items():
            lines += [f"{state}: {{", *self.statements(body, scope), "}"]
        self.define(f"static bool {path}_apply(void)", lines)
        return f"{path}_apply"

    # ---- the file ----

    def write_types(self):
        for fields in self.types.values():
            is_header = fields.kind == "header"
            lines = [f"  {'uint64_t' if isinstance(of, int) else f'struct {of}'} {name};" for name, of in fields.fields]
            self.code.append("\n".join([f"struct {fields.name} {{", "  bool is_valid;", *lines, "};", ""]))
            noise = [f"  v->{name} = {masked('draw()', of)};" if isinstance(of, int) else f"  noise_{of}(&v->{name});"
                     for name, of in fields.fields]
            self.define(f"__attribute__((unused)) static void noise_{fields.name}(struct {fields.name} *v)",
                        ["  v->is_valid = false;", *noise])
            if is_header:
                takes = [f"  if (!take_bytes({of}, &v->{name})) return false;" for name, of in fields.fields]
                self.define(f"__attribute__((unused)) static bool take_{fields.name}(struct {fields.name} *v)",
                            [*takes, "  return v->is_valid = true;"])
                self.define(f"__attribute__((unused)) static void put_{fields.name}(const struct {fields.name} *v)",
                            ["  if (!v->is_valid) return;",
                             *(f"  put_bytes({of}, v->{name});" for name, of in fields.fields)])

    def make(self):
        self.write_types()
        self.code += [f"static struct {of} {name};" for name, of in self.globals.items()] + [""]
        for number, (part, names) in enumerate(zip(self.parts, PARTS[self.target])):
            bound = [("packet" if name == "packet" else name, self.globals.get(name, "packet")) for name in names]
            if isinstance(part, Parser):
                self.define(f"static bool part_{number}(void)", [f"  return {self.parser(part, bound, f'p{number}')}();"])
            else:
                self.define(f"static void part_{number}(void)", [f"  {self.control(part, bound, f'p{number}')}();"])
        unused = [name for name in self.constants if name not in self.used and name not in TRUTHS]
        if unused:
            raise NameError(f"nobody uses {', '.join(unused)}: p4c warns of that")
        noises = [f"  noise_{of}(&{name});" for name, of in self.globals.items() if of not in FOREIGN[self.target]]
        self.define("static void noise(void)", noises)
        self.define("static void begin(const uint8_t *bytes, uint32_t num_bytes)",
                    ["  num_packets++;", "  in_bytes = bytes;", "  in_at = 0;", "  in_end = num_bytes;", "  noise();"])
        self.code.append(GLUE[self.target].strip("\n") + "\n")
        self.write_driver()
        again = self.constants.get("AGAIN") # the port by which packets come in again
        return "\n".join(["/* Made by tests/p4/translate.py. */", "#define P4_PROGRAM",
                          f"#define P4_AGAIN {again.text if again else 'UINT32_MAX'}", '#include "machine.h"', "",
                          *self.code])

    def write_driver(self):
        tables = "".join(f"&{name}, " for name in self.tables)
        registers = ",\n  ".join(self.registers)
        self.code.append(f"""static struct table *const tables[] = {{{tables}NULL}};
static const struct cells registers[] = {{
  {registers}
}};

static uint64_t *cell_of(const char *of, uint32_t index) {{
  for (size_t i = 0; i < sizeof registers / sizeof registers[0]; i++)
    if (strcmp(registers[i].name, of) == 0 && index < registers[i].num)
      return (uint64_t *)(void *)((char *)registers[i].first + index * registers[i].stride);
  return NULL;
}}

static int write_cell(const char *of, uint32_t index, uint64_t value) {{
  uint64_t *cell = cell_of(of, index);
  if (cell != NULL) *cell = value;
  return cell != NULL ? 0 : -1;
}}

static int64_t read_cell(const char *of, uint32_t index) {{
  const uint64_t *cell = cell_of(of, index);
  return cell != NULL ? (int64_t)*cell : -1;
}}

static int add(const char *table, const char *action, const uint64_t *keys, const uint64_t *masks,
               const uint64_t *data) {{
  return add_to(find_table(tables, table), action, keys, masks, data);
}}

static int remove_entry(const char *table, const uint64_t *keys) {{
  return remove_from(find_table(tables, table), keys);
}}

static void reset(uint64_t seed) {{
  random_state = seed * 2 + 1;
  num_groups = num_waiting = 0;
  for (struct table *const *t = tables; *t != NULL; t++) (*t)->num_entries = 0;
  for (size_t i = 0; i < sizeof registers / sizeof registers[0]; i++)
    for (uint32_t c = 0; c < registers[i].num; c++) *cell_of(registers[i].name, c) = registers[i].initial;
}}

extern __attribute__((visibility("default"))) const struct p4_machine p4_{self.name};
const struct p4_machine p4_{self.name} = {{"{self.name}", reset, add, remove_entry, write_cell, read_cell, set_group, take, set_time, count_waiting, again}};
""")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("source")
    parser.add_argument("name")
    parser.add_argument("output")
    parser.add_argument("-D", dest="defines", action="append", default=[])
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"))
    options = parser.parse_args()
    declarations, target = read(options.source, options.defines, options.cc)
    text = Program(declarations, target, options.name).make()
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
