# SPDX-License-Identifier: Apache-2.0
"""Reads the subset of P4_16 that p4/ is written in: text to declarations, as named tuples.

Not read: generic functions, header stacks and unions, loops, `exit`, `return`, varbits and signed numbers."""
import os
import re
import subprocess
from collections import namedtuple

Number = namedtuple("Number", "value width")            # width: None if the text has none
Name = namedtuple("Name", "text")
Member = namedtuple("Member", "of name")
Slice = namedtuple("Slice", "of high low")
Call = namedtuple("Call", "function arguments")
Cast = namedtuple("Cast", "width of")
Unary = namedtuple("Unary", "operator of")
Binary = namedtuple("Binary", "operator left right")
Choice = namedtuple("Choice", "condition yes no")
Tuple = namedtuple("Tuple", "parts")
Masked = namedtuple("Masked", "value mask")
ANY = Name("_")

Assign = namedtuple("Assign", "target value")
Variable = namedtuple("Variable", "name width value")
If = namedtuple("If", "condition yes no")
Switch = namedtuple("Switch", "table cases")            # cases: (names of actions, statements)
Evaluate = namedtuple("Evaluate", "call")
Transition = namedtuple("Transition", "keys cases")     # cases: (patterns or None for default, state)

Constant = namedtuple("Constant", "name width value")
Fields = namedtuple("Fields", "kind name fields")       # kind: header or struct; fields: (name, width or type's name)
Control = namedtuple("Control", "name parameters locals apply")
Parser = namedtuple("Parser", "name parameters locals states")
Action = namedtuple("Action", "name parameters body")   # parameters: (name, width or type's name)
Table = namedtuple("Table", "name shown keys actions default entries") # keys: (expression, kind, name)
Instance = namedtuple("Instance", "name shown type types arguments body") # body: of a RegisterAction's apply, or None
Package = namedtuple("Package", "type arguments name")

TOKEN = re.compile(r'\s+|(?P<text>\d+w0x[0-9a-fA-F]+|\d+w\d+|0x[0-9a-fA-F]+|\d+|[A-Za-z_]\w*|"[^"]*"|'
                   r"&&&|\|-\||\+\+|&&|\|\||==|!=|<=|>=|<<|>>|.)", re.DOTALL)
# Weakest first. Not as in C: & and | bind stronger than comparisons.
LEVELS = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("|",), ("^",), ("&",), ("<<", ">>"),
          ("+", "-", "++", "|-|"), ("*",))


class Newtype(int):
    """The width of a type of its own, which a cast makes a number of that width alone."""


TYPES = {"tna": {"PortId_t": 9}, "v1model": {},
         "pna": {"PortId_t": Newtype(32), "MirrorSlotId_t": Newtype(8), "MirrorSessionId_t": Newtype(16)}}


def preprocess(path, defines, compiler="cc"):
    """The file's text after the C preprocessor, without the headers of compilers; and the target that they are for."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    target = next(name for name in ("v1model", "pna", "tna") if f"<{name}.p4>" in text)
    text = re.sub(r"^#include <.*$", "", text, flags=re.MULTILINE)
    done = subprocess.run([*compiler.split(), "-E", "-P", "-undef", "-x", "c", "-w", "-I", os.path.dirname(path) or ".",
                           *(f"-D{define}" for define in defines), "-"],
                          input=text, text=True, check=True, stdout=subprocess.PIPE)
    return done.stdout, target


class Reader:
    def __init__(self, text, target):
        self.tokens = [match["text"] for match in TOKEN.finditer(text) if match["text"]] + [""]
        self.at, self.types = 0, TYPES[target]

    # ---- tokens ----

    def peek(self, ahead=0):
        return self.tokens[self.at + ahead]

    def take(self, *wanted):
        token = self.tokens[self.at]
        if wanted and token not in wanted:
            raise SyntaxError(f"{token!r} instead of {wanted}: {' '.join(self.tokens[self.at - 12:self.at + 4])}")
        self.at += 1
        return token

    def has(self, token):
        if self.peek() != token:
            return False
        self.at += 1
        return True

    def annotations(self):
        """What @name says, or None; all others are compilers'."""
        shown = None
        while self.has("@"):
            name = self.take()
            if self.peek() != "(":
                continue
            start, depth = self.at, 0
            while True:
                token = self.take()
                depth += (token == "(") - (token == ")")
                if depth == 0:
                    break
            if name == "name":
                shown = self.tokens[start + 1].strip('"')
        return shown

    def listed(self, end, read):
        """Things with commas between them, up to `end`."""
        things = []
        while not self.has(end):
            things.append(read())
            if self.peek() != end:
                self.take(",")
        return things

    # ---- types ----

    def type(self):
        """The width of a number, or the name of a type."""
        name = self.take()
        if name == "bit":
            self.take("<")
            width = int(self.take())
            self.close_angle()
            return width
        return 1 if name == "bool" else self.types.get(name, name)

    def close_angle(self):
        if self.peek() == ">>":
            self.tokens[self.at] = ">"
        else:
            self.take(">")

    def parameter(self):
        if self.peek() in ("in", "out", "inout"):
            self.take()
        kind = self.type()
        return self.take(), kind

    def parameters(self):
        self.take("(")
        return self.listed(")", self.parameter)

    # ---- expressions ----

    def expression(self, level=0):
        if level == 0:
            condition = self.expression(1)
            if not self.has("?"):
                return condition
            yes = self.expression(0)
            self.take(":")
            return Choice(condition, yes, self.expression(0))
        if level > len(LEVELS):
            return self.unary()
        left = self.expression(level + 1)
        while self.peek() in LEVELS[level - 1]:
            left = Binary(self.take(), left, self.expression(level + 1))
        return left

    def unary(self):
        if self.peek() in ("~", "!", "-"):
            return Unary(self.take(), self.unary())
        if self.peek() == "(" and (self.peek(1) == "bit" or self.peek(1) in self.types):
            self.take("(")
            width = self.type()
            self.take(")")
            return Cast(width, self.unary())
        return self.postfix(self.primary())

    def primary(self):
        token = self.take()
        if token == "(":
            inner = self.expression()
            self.take(")")
            return inner
        if token == "{":
            return Tuple(self.listed("}", self.expression))
        if token[0].isdigit():
            width, _, value = token.rpartition("w")
            return Number(int(value, 0), int(width) if width else None)
        if not re.match(r"\w", token):
            raise SyntaxError(f"{token!r} is no expression: {' '.join(self.tokens[self.at - 12:self.at + 4])}")
        return Name(token)

    def postfix(self, of):
        while True:
            if self.has("."):
                of = Member(of, self.take())
            elif self.has("("):
                of = Call(of, self.listed(")", self.expression))
            elif self.has("["):
                high = int(self.take())
                self.take(":")
                of = Slice(of, high, int(self.take()))
                self.take("]")
            else:
                return of

    def pattern(self):
        """Of a select or a constant entry."""
        value = self.expression()
        return Masked(value, self.expression()) if self.has("&&&") else value

    def patterns(self):
        if not self.has("("):
            return [self.pattern()]
        return self.listed(")", self.pattern)

    # ---- statements ----

    def block(self):
        self.take("{")
        statements = []
        while not self.has("}"):
            statements.extend(self.statement())
        return statements

    def statement(self):
        if self.peek() == "{":
            return self.block()
        if self.has(";"):
            return []
        if self.has("if"):
            self.take("(")
            condition = self.expression()
            self.take(")")
            yes = self.statement()
            return [If(condition, yes, self.statement() if self.has("else") else [])]
        if self.has("switch"):
            return [self.switch()]
        if self.has("transition"):
            return [self.transition()]
        if self.peek() == "bit":
            width, name = self.type(), self.take()
            value = self.expression() if self.has("=") else None
            self.take(";")
            return [Variable(name, width, value)]
        target = self.expression()
        statement = Assign(target, self.expression()) if self.has("=") else Evaluate(target)
        self.take(";")
        return [statement]

    def switch(self):
        self.take("(")
        table = self.expression()
        self.take(")")
        self.take("{")
        cases, names = [], []
        while not self.has("}"):
            names.append(self.take())
            self.take(":")
            if self.peek() == "{":
                cases.append((names, self.block()))
                names = []
        return Switch(table, cases)

    def transition(self):
        if not self.has("select"):
            state = self.take()
            self.take(";")
            return Transition([], [(None, state)])
        self.take("(")
        keys, cases = self.listed(")", self.expression), []
        self.take("{")
        while not self.has("}"):
            patterns = None if self.has("default") else self.patterns()
            self.take(":")
            cases.append((patterns, self.take()))
            self.take(";")
        return Transition(keys, cases)

    # ---- declarations ----

    def action(self):
        return Action(self.take(), self.parameters(), self.block())

    def table(self, shown):
        name, keys, actions, default, entries = self.take(), [], [], Call(Name("NoAction"), []), None
        self.take("{")
        while not self.has("}"):
            self.has("const")
            what = self.take()
            self.take("=")
            if what == "key":
                self.take("{")
                while not self.has("}"):
                    expression = self.expression()
                    self.take(":")
                    kind = self.take("exact", "ternary")
                    keys.append((expression, kind, self.annotations()))
                    self.take(";")
            elif what == "actions":
                self.take("{")
                while not self.has("}"):
                    self.annotations()
                    actions.append(self.take())
                    self.take(";")
            elif what == "entries":
                self.take("{")
                entries = []
                while not self.has("}"):
                    patterns = self.patterns()
                    self.take(":")
                    entries.append((patterns, self.expression()))
                    self.take(";")
            else:
                value = self.expression()
                self.take(";")
                default = value if what == "default_action" else default
        return Table(name, shown, keys, actions, default, entries)

    def instance(self, shown):
        """Of an extern or a control."""
        kind, types, body = self.take(), [], None
        if self.has("<"):
            while True:
                types.append(self.type())
                if not self.has(","):
                    break
            self.close_angle()
        self.take("(")
        arguments = self.listed(")", self.expression)
        name = self.take()
        if self.has("="):
            self.take("{")
            self.take("void")
            self.take("apply")
            body = self.parameters(), self.block()
            self.take("}")
        self.take(";")
        return Instance(name, shown, kind, types, arguments, body)

    def control(self):
        name, parameters, inner, apply = self.take(), self.parameters(), [], []
        self.take("{")
        while not self.has("}"):
            shown = self.annotations()
            if self.has("action"):
                inner.append(self.action())
            elif self.has("table"):
                inner.append(self.table(shown))
            elif self.has("apply"):
                apply = self.block()
            else:
                inner.append(self.instance(shown))
        return Control(name, parameters, inner, apply)

    def parser(self):
        name, parameters, inner, states = self.take(), self.parameters(), [], {}
        self.take("{")
        while not self.has("}"):
            if not self.has("state"):
                inner.append(self.instance(None))
                continue
            state = self.take()
            states[state] = self.block()
        return Parser(name, parameters, inner, states)

    def fields(self, kind):
        name, fields = self.take(), []
        self.take("{")
        while not self.has("}"):
            of = self.type()
            fields.append((self.take(), of))
            self.take(";")
        return Fields(kind, name, fields)

    def program(self):
        while self.peek():
            self.annotations()
            if self.has("const"):
                width, name = self.type(), self.take()
                self.take("=")
                yield Constant(name, width, self.expression())
                self.take(";")
            elif self.peek() in ("header", "struct"):
                yield self.fields(self.take())
            elif self.has("control"):
                yield self.control()
            elif self.has("parser"):
                yield self.parser()
            else:
                kind = self.take()
                self.take("(")
                arguments, name = self.listed(")", self.expression), self.take()
                yield Package(kind, arguments, name)
                self.take(";")


def read(path, defines=(), compiler="cc"):
    """(declarations, target)"""
    text, target = preprocess(path, defines, compiler)
    return list(Reader(text, target).program()), target


def refuse_duplicates(names, where):
    """As p4c: a second declaration of a name is none."""
    for name in names:
        if names.count(name) > 1:
            raise NameError(f"{where} declares {name} {names.count(name)} times")
