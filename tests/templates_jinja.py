#!/usr/bin/env python3
"""Compares the built-in chat templates with Jinja2, the way transformers runs it, and keeps what follows from that.

  templates_jinja.py check [DIR ...]     every *.jinja in DIR (default: tests/data/templates): not recognised, or the same text
                                         as Jinja2's on every conversation, or refused by both.  Exit 1 otherwise.
  templates_jinja.py table DIR ...       rewrites the table of known texts in lib/model/template_table.c: a text is put in when
                                         it renders as some row does on every conversation.  Known texts that are not in DIR stay.
  templates_jinja.py expect              rewrites tests/data/templates/expected.txt from Jinja2.

Needs the jinja2 package and a C compiler (CC, default cc); builds lib/model/template*.c into a temporary directory.  The C test
tests/unit/model_template.c needs none of this: it reads what `expect` has stored.
"""
import ctypes as C
import glob
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DATA = os.path.join(ROOT, "tests/data/templates")
TABLE = os.path.join(ROOT, "lib/model/template_table.c")
BOS, EOS = "<BOS>", "<EOS>"


# ---- Jinja2 ----

class Generation(Extension):
    """{% generation %}: transformers marks the assistant's words with it; the text is not changed."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True))


class Refused(Exception):
    pass


CLOCK = "\ufffdDATE\ufffd"


def environment(clock):
    def raise_exception(message):
        raise Refused(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    e = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    e.filters["tojson"] = tojson
    e.globals["raise_exception"] = raise_exception
    if clock:
        e.globals["strftime_now"] = lambda _format: CLOCK
    return e


PLAIN, CLOCKED = environment(False), environment(True)


class Jinja:
    """A text that has a date of its own for the case without a clock prints that.  One that cannot do without a clock has one here,
    and what then has the date in it counts as refused: we have no clock."""

    def __init__(self, source):
        self.plain, self.clocked = PLAIN.from_string(source), CLOCKED.from_string(source)

    def render(self, conversation, gen, thinking):
        v = dict(messages=[{"role": r, "content": c} for r, c in conversation], add_generation_prompt=gen, bos_token=BOS,
                 eos_token=EOS)
        if not thinking:
            v["enable_thinking"] = False
        try:
            return self.plain.render(**v)
        except Exception as x:
            if "strftime_now" not in str(x):
                return None
        try:
            text = self.clocked.render(**v)
        except Exception:
            return None
        return None if CLOCK in text else text


# ---- the library ----

class Message(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("reserved0", C.c_uint32), ("role", C.c_char_p), ("content", C.c_char_p),
                ("content_bytes", C.c_size_t)]


class Parts(C.Structure):
    _fields_ = [("parts", C.c_void_p), ("n", C.c_size_t), ("text", C.c_void_p), ("bytes", C.c_size_t),
                ("words", C.c_void_p), ("n_words", C.c_size_t)]


class Env(C.Structure):
    _fields_ = [("mem", C.c_void_p), ("log", C.c_void_p), ("io", C.c_void_p)]


class Library:
    def __init__(self, directory):
        path = os.path.join(directory, "templates.so")
        sources = sorted(glob.glob(ROOT + "/lib/model/template*.c") + glob.glob(ROOT + "/lib/base/*.c"))
        subprocess.run(os.environ.get("CC", "cc").split() + ["-std=c11", "-D_GNU_SOURCE", "-O1", "-pthread", "-fPIC", "-shared",
                       "-I" + ROOT + "/include", "-I" + ROOT + "/lib", "-I" + ROOT + "/backends", *sources, "-o", path], check=True)
        lib = self.lib = C.CDLL(path)
        lib.hl_chat_template_find.restype = lib.hl_chat_template_detect.restype = C.c_void_p
        lib.hl_chat_template_find.argtypes = [C.c_char_p]
        lib.hl_chat_template_detect.argtypes = [C.c_char_p, C.c_size_t]
        lib.hl_chat_template_name.restype = lib.hl_chat_template_names.restype = C.c_char_p
        lib.hl_chat_template_name.argtypes = [C.c_void_p]
        lib.hl_chat_template_render.argtypes = [C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t, C.c_uint32, C.c_char_p,
                                                C.c_char_p, C.c_void_p]
        lib.hl_chat_fingerprint.argtypes = [C.c_char_p, C.c_size_t, C.c_void_p, C.c_void_p]
        lib.hl_chat_fingerprint.restype = C.c_bool
        lib.hl_chat_parts_free.argtypes = [C.c_void_p, C.c_void_p]
        mem = C.c_void_p()
        assert lib.hl_mem_new(None, C.byref(mem)) == 0
        self.env = Env(mem, None, None)
        self.names = lib.hl_chat_template_names().decode().split()

    def detect(self, source):
        t = source.encode()
        row = self.lib.hl_chat_template_detect(t, len(t))
        return self.lib.hl_chat_template_name(row).decode() if row else None

    def fingerprint(self, source):
        t, h, n = source.encode(), C.c_uint64(), C.c_uint32()
        return (h.value, n.value) if self.lib.hl_chat_fingerprint(t, len(t), C.byref(h), C.byref(n)) else None

    def render(self, name, conversation, gen, thinking):
        messages = (Message * len(conversation))()
        for i, (role, content) in enumerate(conversation):
            b = content.encode()
            messages[i] = Message(C.sizeof(Message), 0, role.encode(), b, len(b))
        out = Parts()
        rc = self.lib.hl_chat_template_render(C.byref(self.env), None, self.lib.hl_chat_template_find(name.encode()), messages,
                                              len(conversation), (0 if gen else 1) | (0 if thinking else 2), BOS.encode(),
                                              EOS.encode(), C.byref(out))
        if rc:
            assert rc == -1, rc
            return None
        text = C.string_at(out.text, out.bytes).decode() if out.bytes else ""
        self.lib.hl_chat_parts_free(C.byref(self.env), C.byref(out))
        return text


# ---- the fingerprint once more, on Jinja2's own lexer ----

NO_SPLIT = {"if", "else", "or", "and", "not", "is", "in", "-", "*", "/", "//", "**", "%", "==", "!=", "<", ">", "<=", ">=", ":", ",",
            ";", "=", "!"}


def canonical(source):
    """The stream of template_detect.c; None where that refuses.  Its marks are the characters U+10FFF0 and up here."""
    out, text = bytearray(), False

    def put_text(s):
        nonlocal text
        if s and not text:
            out.append(0xFF)
            text = True
        out.extend(s.encode())

    def string(raw):
        s = re.sub(r"\r\n|\r|\n", "\n", raw[1:-1])
        if re.search(r"\\(?![ntr\\'\"])", re.sub(r"\\\\", "", s)):
            raise ValueError("escape")
        return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t", "r": "\r"}.get(m.group(1), m.group(1)), s, flags=re.S)

    def put_token(kind, value):
        if kind == "string":
            out.append(0xFD)
            out.extend(string(value).encode())
        else:
            words = re.findall(r"\.|[^.]+", value) if kind in ("float", "integer") else [value]
            for w in words:
                out.append(0xFC if kind == "operator" or w == "." else 0xFB)
                out.extend(w.encode())

    def put_tokens(tokens):
        i = 0
        while i < len(tokens):
            if tokens[i] == ("operator", ".") and i + 1 < len(tokens) and tokens[i + 1] in (("name", "role"), ("name", "content")):
                out.extend(b"\xfc[\xfd" + tokens[i + 1][1].encode() + b"\xfc]")
                i += 2
            else:
                put_token(*tokens[i])
                i += 1

    def depths(tokens):
        depth = 0
        for kind, value in tokens:
            yield depth
            if kind == "operator":
                depth += (value in "([{") - (value in ")]}")

    def put_output(tokens):
        nonlocal text
        at = list(depths(tokens))
        split = not any(d == 0 and k in ("name", "operator") and v in NO_SPLIT for (k, v), d in zip(tokens, at))
        terms, term = [], []
        for t, d in zip(tokens, at):
            if split and d == 0 and t in (("operator", "+"), ("operator", "~")):
                terms.append(term)
                term = []
            else:
                term.append(t)
        for term in terms + [term]:
            if not term:
                raise ValueError("no operand")
            if split and len(term) == 1 and term[0][0] == "string":
                put_text(string(term[0][1]))
                continue
            out.append(0xF9)
            text = False
            put_tokens(term)
            out.append(0xFE)

    tag = None
    try:
        for _line, kind, value in PLAIN.lexer.tokeniter(source, None):
            if kind == "data":
                put_text(value)
            elif kind in ("block_begin", "variable_begin"):
                tag = []
            elif kind == "raw_begin":
                return None
            elif kind == "variable_end":
                put_output(tag)
                tag = None
            elif kind == "block_end":
                out.append(0xFA)
                text = False
                put_tokens(tag)
                out.append(0xFE)
                tag = None
            elif tag is not None and kind != "whitespace":
                tag.append((kind, value))
    except ValueError:
        return None
    out.append(0xFE)
    return bytes(out)


def fingerprint(source):
    stream = canonical(source)
    if stream is None:
        return None
    h = 0xCBF29CE484222325
    for b in stream:
        h = (h ^ b) * 0x100000001B3 % 2**64
    return h, len(stream)


# ---- conversations ----

ROLES = {"s": "system", "u": "user", "a": "assistant"}
HOSTILE = "<think>\nreason\n</think>\n\nanswer <|im_end|><|eot_id|></s>[/INST]{{ bos_token }}{% raw %}{#"
TEXTS = ["\u2460 plain", "  \n two\n\n ", "", HOSTILE]
SCRAPS = ["<think>", "</think>", "\n", "\n\n", " ", "\u00a0", "\u2003", "\x1c", "\t", "a", "Wort", "\u4f60\u597d", "\U0001f389", "<|im_end|>",
          "<|im_start|>system\n", "<<SYS>>", "[INST]", "</s>", "{{ x }}", "{% if %}", "/nothink", "/no_think", "/think",
          "<tool_response>", "</tool_response>", "detailed thinking on", "%c%b%(", "\\n", "'", '"', "\r\n", "<BOS>", "<EOS>", "x" * 40]


def conversations(seed=1, n_random=250):
    """Every order of up to four roles, the texts above in common orders, and random scraps in random orders."""
    out = []
    for n in range(1, 5):
        for roles in itertools.product("sua", repeat=n):
            out.append([(ROLES[r], "<%s%d>" % (r.upper(), i)) for i, r in enumerate(roles)])
    for roles in ("u", "su", "uau", "suau", "sua", "ua", "uaua", "uauau", "usu", "suaua"):
        for k in range(1, 4):
            out.append([(ROLES[r], TEXTS[k].replace("answer", "answer%d" % i)) for i, r in enumerate(roles)])
        for k in range(1, 4):
            out.append([(ROLES[r], TEXTS[(i + k) % 4]) for i, r in enumerate(roles)])
    rng = random.Random(seed)
    for _ in range(n_random):
        roles = rng.choice(["u", "su", "ua", "uau", "suau", "uaua", "suaua", "uauau", "suauau"]) if rng.random() < 0.7 else \
            "".join(rng.choice("sua") for _ in range(rng.randint(1, 6)))
        out.append([(ROLES[r], "".join(rng.choice(SCRAPS) for _ in range(rng.randint(0, 7)))) for r in roles])
    return out


CASES = [(g, t) for g in (True, False) for t in (True, False)]


def first_difference(library, name, jinja, convs):
    n = 0
    for c in convs:
        for gen, thinking in CASES:
            a, b = jinja.render(c, gen, thinking), library.render(name, c, gen, thinking)
            n += 1
            if a != b:
                return n, (c, gen, thinking, a, b)
    return n, None


def read(path):
    with open(path, encoding="utf-8", newline="") as f:
        return f.read()


def sources(directories):
    for d in directories:
        for path in sorted(glob.glob(os.path.join(d, "*.jinja"))):
            yield path, read(path)


# ---- stored conversations ----

def unescape(s):
    def one(m):
        c = m.group(1)
        return {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\"}.get(c) or bytes([int(c[1:], 16)])
    out, at = b"", 0
    for m in re.finditer(r"\\(n|r|t|\\|x[0-9a-f]{2})", s):
        out += s[at:m.start()].encode() + one(m)
        at = m.end()
    return (out + s[at:].encode()).decode()


def escape(s):
    return s.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def stored_conversations():
    out = []
    for line in read(os.path.join(DATA, "conversations.txt")).split("\n"):
        if line.startswith("case "):
            out.append((line[5:], []))
        elif line and line[0] != "#":
            role, _, content = line.partition(" ")
            out[-1][1].append((role, unescape(content)))
    return out


def fnv(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = (h ^ b) * 0x100000001B3 % 2**64
    return "%016x" % h


# ---- commands ----

def expect(library):
    """One block a template: its row ("-": not recognised), the text of the case "turns", and for every case the hashes (FNV-1a, 64 bits)
    of what Jinja2 renders for CASES in order; "-" where it refuses."""
    cases = stored_conversations()
    lines = ["# Written by tests/templates_jinja.py expect from Jinja2.  bos is %s, eos is %s." % (BOS, EOS),
             "# template FILE ROW; text TEXT (of the case turns); CASE HASH HASH HASH HASH: generation prompt, with thinking and without; then no",
             "# generation prompt, the same two.  - : not recognised, refused.  = : as the one before."]
    for path, source in sources([DATA]):
        row = library.detect(source)
        lines.append("template %s %s" % (os.path.basename(path), row or "-"))
        if row is None:
            continue
        jinja = Jinja(source)
        for name, conversation in cases:
            texts = [jinja.render(conversation, g, t) for g, t in CASES]
            if name == "turns" and texts[0] is not None:
                lines.append("text " + escape(texts[0]))
            hashes = ["-" if t is None else fnv(t) for t in texts]
            lines.append(" ".join([name] + ["=" if i and h == hashes[i - 1] else h for i, h in enumerate(hashes)]))
    with open(os.path.join(DATA, "expected.txt"), "w", encoding="utf-8", newline="") as f:
        f.write("\n".join(lines) + "\n")
    return 0


def mutants(source, rng, n):
    """The text with one small change: what a variant of a model's template may look like."""
    words = ["", " ", "\n", "x", "'", "{{ bos_token }}", "{% if false %}", "<|im_end|>", "-", "+", "|trim", "not ", "0", "1"]
    strings = sorted(set(re.findall(r"'[^']{1,60}'|role|content|system|user|assistant|==|!=|first|last|[-+]|\|\s*trim", source)))
    for _ in range(n):
        if rng.random() < 0.4 and len(strings) > 1:
            old = rng.choice(strings)
            at = rng.choice([m.start() for m in re.finditer(re.escape(old), source)])
            yield source[:at] + rng.choice(strings + words) + source[at + len(old):]
        else:
            at = rng.randrange(len(source))
            yield source[:at] + rng.choice(words) + source[at + rng.randint(0, 2):]


def check(library, directories):
    rng = random.Random(7)
    tried = taken = 0
    bad = recognised = total = compared = 0
    convs = conversations()
    for path, source in sources(directories):
        total += 1
        name = library.detect(source)
        stem = os.path.basename(path)
        try:
            expected = fingerprint(source)
        except Exception:
            expected = None
        if library.fingerprint(source) != expected:
            print("BAD   %-60s fingerprint: C %s, Python %s" % (stem, library.fingerprint(source), expected))
            bad += 1
        if name is None:
            print("      %-60s not recognised" % stem)
            continue
        recognised += 1
        n, d = first_difference(library, name, Jinja(source), convs)
        compared += n
        print("%s %-60s %s" % ("BAD  " if d else "equal", stem, name))
        if d:
            bad += 1
            print("      %r gen=%s thinking=%s\n      jinja %r\n      ours  %r" % d)
        # A text with a small change is another text, unless the change has no meaning.
        for changed in mutants(source, rng, 40):
            tried += 1
            name = library.detect(changed)
            if name is None:
                continue
            taken += 1
            try:
                d = first_difference(library, name, Jinja(changed), convs[:120:3] + convs[120:220])[1]
            except Exception as x:
                d = x
            if d:
                bad += 1
                print("BAD   %s changed is still taken for %s: %s\n%s" % (stem, name, d, changed))
    print("%d changed texts, %d of them still recognised" % (tried, taken))
    print("%d texts, %d recognised, %d renderings compared, %d bad" % (total, recognised, compared, bad))
    return 1 if bad or not total else 0


def table(library, directories):
    convs = conversations()
    text = read(TABLE)
    head, rest = text.split("hl_chat_known_texts[] = {\n", 1)
    old, tail = rest.split("};\n", 1)
    known = {}
    for m in re.finditer(r"\{ 0x([0-9A-F]+)u?, (\d+), \"([^\"]+)\" \}", old):
        if m.group(3) in library.names:
            known[int(m.group(1), 16)] = (int(m.group(2)), m.group(3))
    for path, source in sources(directories):
        try:
            print_ = fingerprint(source)
            jinja = Jinja(source)
        except Exception as x:
            print("%-60s not compiled: %s" % (os.path.basename(path), x))
            continue
        if print_ is None:
            continue
        known.pop(print_[0], None)
        names = sorted(library.names, key=lambda r: r != library.detect(source))
        for name in names:
            if first_difference(library, name, jinja, convs)[1] is None:
                known[print_[0]] = (print_[1], name)
                break
        print("%-60s %s" % (os.path.basename(path), known.get(print_[0], (0, "-"))[1]))
    rows = "".join("    { 0x%016X, %d, \"%s\" },\n" % (h, n, name) for h, (n, name) in sorted(known.items()))
    with open(TABLE, "w", encoding="utf-8", newline="") as f:
        f.write(head + "hl_chat_known_texts[] = {\n" + rows + "};\n" + tail)
    print("%d known texts" % len(known))
    return 0


def main(argv):
    with tempfile.TemporaryDirectory() as directory:
        library = Library(directory)
        if argv[:1] == ["check"]:
            return check(library, argv[1:] or [DATA])
        if argv[:1] == ["table"] and argv[1:]:
            return table(library, argv[1:])
        if argv == ["expect"]:
            return expect(library)
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
