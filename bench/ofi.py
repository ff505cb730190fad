# SPDX-License-Identifier: Apache-2.0
"""bench-ofi: the ofi plugin, libfabric's fi_pingpong, fabtests, UCX and any other plugin over libfabric, between two
processes on loopback.

Each provider has cells of its own, and tcp a group of them for each congestion control."""
import collections
import os
import pathlib
import re
import shlex
import shutil
import time

import machine
import report
from columns import SPIN, Counted, KitBench, Ucx, free_port
from congestion import controls
from program import Failed, Program, execute
from report import OURS, load_fact, load_warnings, size_name, spread_cell, table, with_second

NAME, LIBRARY, HEADING = "ofi", "libnccl-net-ofi.so", "Libfabric transports side by side"
SIZES, QUICK_SIZES, METRICS = "8,4K,64K,1M,4M", "8,64K", ("bw", "lat")
METRICS_HELP = "bw: transfers; lat: ping-pong (both)"
SECONDS, WARMUP, WAIT = (0.3, 0.1), (0.1, 0.03), 30  # full, quick
QUICK_HELP = "cubic only, two sizes, one short round: a minute"
COLUMNS_HELP = f"{OURS}, fi_pingpong, rdm_tagged_bw, rdm_tagged_pingpong, ucx, and each plugin's name"
MUST_BE_RIGHT = (OURS,)
GROUP = "over"  # what a run notes besides its cell: the provider, and the congestion control where it has one
KIB = 1 << 10

FABTESTS = ("rdm_tagged_bw", "rdm_tagged_pingpong")
OVER_TCP = ("tcp", "sockets", "net")
OVER_IP = (*OVER_TCP, "udp")  # providers that can be told their interface
UCX_TRANSPORTS = {"tcp": {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}, "shm": {"UCX_TLS": "shm"}}
WINDOW, MOST_IN_WINDOW = 8, 32  # messages outstanding on a connection; NCCL_NET_MAX_REQUESTS
# Fields as of bench-socket's cells, the provider, and whether all messages have one buffer
Cell = collections.namedtuple("Cell", "kind size comms window idle provider one_buffer")


def core(provider):
    """tcp of tcp;ofi_rxm"""
    return provider.split(";")[0]


def make_cells(sizes, comms, metrics, provider):
    """fabtests and UCX send all messages from one buffer into one, which stays in a cache: a plugin does so for
    comparison with them, and has a buffer for each message, as NCCL has, for comparison with other plugins."""
    cells = []
    for size in sizes:
        if "lat" in metrics and size <= 1 << 20:
            cells.append(Cell("lat", size, 1, 2, SPIN, provider, False))  # as libfabric's programs do
        if "bw" in metrics:
            cells += [Cell("bw", size, n, WINDOW, 0, provider, False) for n in comms]
            cells += [Cell("bw", size, 1, MOST_IN_WINDOW, 0, provider, False)] if 1 in comms else []
            windows = (WINDOW, MOST_IN_WINDOW) if 1 in comms else ()
            cells += [Cell("bw", size, 1, n, 0, provider, True) for n in windows]
    return cells


class Libfabric:
    """The one that all columns use: the system's, or that below `prefix`."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.variables = {"LD_LIBRARY_PATH": f"{prefix}/lib"} if prefix else {}

    def program(self, name):
        return str(self.prefix / "bin" / name) if self.prefix else name

    def environment(self, provider):
        """Only this provider, only loopback."""
        name = core(provider)
        interface = {f"FI_{name.upper()}_IFACE": "lo"} if name in OVER_IP else {}
        return {**self.variables, "FI_PROVIDER": name, **interface}

    def exact(self, provider):
        """What libfabric's programs take by that name: for tcp tcp;ofi_rxm where tcp alone has no FI_EP_RDM."""
        if not shutil.which(self.program("fi_info")):
            return provider
        argv = [self.program("fi_info"), "-p", provider, "-t", "FI_EP_RDM"]
        status, said, complaint = Program(argv, self.environment(provider)).finish()
        names = [line.split()[1] for line in said.splitlines() if line.startswith("provider:")]
        if status != 0 or not names:
            raise Failed(f"libfabric offers no FI_EP_RDM on loopback by provider {provider}: {complaint}{said}")
        return names[0]

    def version(self):
        if not shutil.which(self.program("fi_info")):
            return "of unknown version"
        said = execute([self.program("fi_info"), "--version"], self.variables)
        return next((line.split()[1] for line in said.splitlines() if line.startswith("libfabric:")), said.strip())

    def used_by(self, path):
        """The libfabric that a program or a plugin is linked with; None: with none."""
        _, said, _ = Program(["ldd", shutil.which(path) or path], self.variables).finish()
        found = re.search(r"libfabric\.so\.1 => (\S+)", said)
        return os.path.realpath(found.group(1)) if found else None


class Plugin(KitBench):
    """A plugin's vtable, driven by rail-kit bench, over one provider."""

    def __init__(self, key, title, program, path, fabric, env):
        super().__init__(key, title, program, [path, "--patience", "20"], env)
        self.path, self.fabric = path, fabric

    def environment(self, cell):
        name = cell.provider
        own = {"OFI_NCCL_EXCLUDE_TCP_IF": "docker0"}  # aws-ofi-nccl leaves out loopback otherwise
        if self.key == OURS:  # a first part alone is the name of both, so that tcp would be tcp;ofi_rxm, too
            own = {"RAIL_OFI_PROVIDER": name if ";" in name else f"^{name};ofi_rxm"}
            if self.fabric.prefix:
                own["RAIL_OFI_LIBRARY"] = f"{self.fabric.prefix}/lib/libfabric.so.1"
        return {"NCCL_SOCKET_IFNAME": "lo", **self.fabric.environment(name), **own, **self.env}

    def chosen(self, cell):
        """What our plugin says it uses: its provider and protocol."""
        said = execute([self.base[0], "inspect", self.path], self.environment(cell))
        found = re.search(r"device 0 is [^,]+, provider ([^,]+), protocol (\w+)", said)
        if not found:
            raise Failed(f"{self.title} has no device over {cell.provider}: rail-kit inspect says\n{said[-3000:]}")
        return found.groups()


class Calls(Counted):
    """A program of libfabric's: one process listens, another calls it. Both spin when idle."""

    FIRST = (500, 4 << 20)

    def __init__(self, key, path, fabric, env):
        super().__init__(key, key, env)
        self.path, self.fabric, self.wire = path, fabric, os.path.basename(path)

    def environment(self, cell):
        return {**self.fabric.environment(cell.provider), **self.env}

    def once(self, cell, env, iterations):
        """(microseconds a message, CPU seconds of both processes); remembers the rate."""
        port = free_port()
        client = [*self.command(cell, iterations, port, True), "127.0.0.1"]
        out, cpu = self.pair(cell, env, self.command(cell, iterations, port, False), client, port)
        try:
            us = self.microseconds(cell, out)
            self.rate[cell] = 1e6 / us
        except (IndexError, ValueError, ZeroDivisionError):
            raise Failed(f"no figures: {shlex.join(client)}\n{out[-500:]}") from None
        return us, cpu

    def iterations(self, cell, seconds):
        n = super().iterations(cell, seconds)
        return max(20, n // 2) if cell.kind == "lat" else n  # round trips have two messages

    def shown(self, cell, warmup, seconds):
        n = self.iterations(cell, seconds)
        words = [f"{k}={shlex.quote(v)}" for k, v in self.environment(cell).items()]
        server, client = (shlex.join(self.bound(side, self.command(cell, n, 47592, side == 0))) for side in (1, 0))
        return " ".join(["export", *words]) + f"; {server} & sleep 1; {client} 127.0.0.1"


class Pingpong(Calls):
    """fi_pingpong. Its first message makes the connection, and it has no warm-up: what a run of few round trips takes
    is taken off."""

    FEW = 10

    def has(self, cell):
        return cell.kind == "lat"

    def command(self, cell, iterations, port, calls):
        return [self.path, "-p", cell.provider, "-e", "rdm", "-m", "tagged", "-I", str(iterations), "-S",
                str(cell.size), "-P" if calls else "-B", str(port)]

    @staticmethod
    def microseconds(cell, out):
        """It rounds to hundredths: of the time and of the megabytes a second the greater one is more exact."""
        row = [line.split() for line in out.splitlines() if line[:1].isdigit()][-1]
        megabytes, us = float(row[5]), float(row[6])
        return us if us >= megabytes else cell.size / megabytes

    def timed(self, cell, env, seconds):
        n = self.iterations(cell, seconds)
        begin, _ = self.once(cell, env, self.FEW)
        us, _ = self.once(cell, env, n)
        rest = (us * n - begin * self.FEW) / (n - self.FEW)
        return {"verdict": "ok", "messages": 2 * n, "half_us": {"mean": rest if rest > 0 else us}}


class Fabtests(Calls):
    """fabtests' rdm_tagged_bw and rdm_tagged_pingpong. The first sends as many messages as the window holds, then waits
    for all of them and for an answer of the receiver."""

    def has(self, cell):
        if self.key.endswith("bw"):
            return cell.kind == "bw" and cell.comms == 1 and cell.one_buffer
        return cell.kind == "lat"

    def command(self, cell, iterations, port, calls):
        window = ["-W", str(cell.window)] if cell.kind == "bw" else []
        any_port = ["-B", "0"] if core(cell.provider) in OVER_IP else []  # those of 1.17 both want one and the same
        return [self.path, "-p", cell.provider, f"-E={port}", *any_port, "-I", str(iterations), "-w",
                str(max(1, iterations // 8)), "-S", str(cell.size), *window, "-m"]

    @staticmethod
    def microseconds(cell, out):
        return float(re.findall(r"usec/xfer: ([0-9.]+)", out)[-1])

    def timed(self, cell, env, seconds):
        if cell.kind == "bw":
            return self.transfers(cell, env, seconds, 1.125)  # an eighth is warm-up
        n = self.iterations(cell, seconds)
        us, _ = self.once(cell, env, n)
        return {"verdict": "ok", "messages": 2 * n, "half_us": {"mean": us}}


class UcxOver(Ucx):
    """UCX over the same transport, where it has that."""

    def environment(self, cell):
        return {**UCX_TRANSPORTS[core(cell.provider)], **self.env}

    def has(self, cell):
        return super().has(cell) and core(cell.provider) in UCX_TRANSPORTS and cell.one_buffer == (cell.kind == "bw")


# ---- what the driver asks ----


def add_arguments(p):
    p.add_argument("--provider", default="tcp,shm",
                   help="libfabric's providers, with commas, as fi_pingpong takes them (tcp,shm)")
    p.add_argument("--libfabric", type=pathlib.Path, metavar="PREFIX",
                   help="where libfabric is installed that all columns use (the system's)")
    p.add_argument("--fabtests", type=pathlib.Path, metavar="DIR", help="fabtests, where they are not on the PATH")
    p.add_argument("--cc", default="cubic,bbr", help="congestion controls of tcp, with commas, each given to all "
                   "(cubic,bbr)")
    p.add_argument("--comms", default="1,4", help="numbers of connections, with commas (1,4)")


def fabtest(o, name):
    """Its path; None: it is not there."""
    folders = [o.fabtests, o.fabtests / "bin"] if o.fabtests else []
    path = os.pathsep.join(map(str, folders)) if folders else None
    return shutil.which(f"fi_{name}", path=path)


def check_arguments(o, p):
    if o.quick and o.cc == p.get_default("cc"):
        o.cc = "cubic"
    o.comms = [int(x) for x in o.comms.split(",")]
    if min(o.comms) < 1:
        p.error("wants --comms from 1")
    o.fabtests, o.libfabric = (path.resolve() if path else None for path in (o.fabtests, o.libfabric))
    for name in FABTESTS if o.fabtests else ():
        if not fabtest(o, name):
            p.error(f"--fabtests {o.fabtests}: there is no fi_{name}")
    if o.libfabric and not (o.libfabric / "lib/libfabric.so.1").exists():
        p.error(f"--libfabric {o.libfabric}: there is no lib/libfabric.so.1")


def make_columns(o, plugins, env):
    fabric, kit = Libfabric(o.libfabric), o.build / "bin" / "rail-kit"
    columns = [Plugin(key, title, kit, path, fabric, env.get(key)) for key, title, path in plugins]
    columns.append(Pingpong("fi_pingpong", fabric.program("fi_pingpong"), fabric, env.get("fi_pingpong")))
    columns += [Fabtests(name, fabtest(o, name), fabric, env.get(name)) for name in FABTESTS if fabtest(o, name)]
    return columns + [UcxOver("UCX", env.get("ucx"))]


def check_programs(columns, p):
    """What setup brings must be there; fabtests are a matter of who has them."""
    for column in columns:
        program = getattr(column, "PROGRAM", column.path if isinstance(column, Calls) else None)
        if program and not shutil.which(program):
            p.error(f"{program} is missing; config/setup.sh bench brings it (or leave the column out with --only)")
    if not any(isinstance(c, Fabtests) for c in columns):
        machine.log("no fabtests: fi_rdm_tagged_bw is not on the PATH; --fabtests DIR says where it is")


def libraries_differ(columns, fabric):
    """A warning when not all columns use one libfabric. Ours opens what is found as for a program."""
    used = {c.title: fabric.used_by(c.path) for c in columns if hasattr(c, "path") and c.key != OURS}
    used = {title: path for title, path in used.items() if path}
    if len(set(used.values())) < 2:
        return []
    return ["WARNING: not one libfabric: " + ", ".join(f"{title} {path}" for title, path in used.items()) +
            " (--libfabric gives all the same)."]


def that_work(columns, provider, cells, run, about):
    """The columns that can be driven over a provider. A peer that cannot is left out, with its reason."""
    found = []
    for column in columns:
        cell = next(filter(column.has, cells), None)
        if not cell:
            continue
        try:
            result = run(column, cell)
        except Failed as why:
            result = {"verdict": "failed", "what": str(why)}
        if result["verdict"] == "ok":
            found.append(column)
        elif column.key == OURS:
            raise Failed(f"{column.title} does not work over {provider}: {result['what']}\n{result.get('said', '')}")
        else:
            reason = (result["what"].splitlines() or [""])[-1][:200]
            about["left_out"].append(f"{column.title} over {provider}: {result['verdict']}: {reason}")
            machine.log(f"left out: {about['left_out'][-1]}")
    return found


def measure_provider(o, columns, provider, congestions, about):
    """The rows and cells of one provider's runs."""
    cells = make_cells(o.sizes, o.comms, o.metrics, provider)
    over = {f"{provider}, {c.name}": c for c in congestions} if core(provider) in OVER_TCP else {provider: None}

    def run(column, noted, cell, warmup=o.warmup, seconds=o.seconds):
        congestion = over[noted[GROUP]]
        return congestion.run(column, cell, warmup, seconds) if congestion else column.run(cell, {}, warmup, seconds)

    first = {GROUP: next(iter(over))}
    columns = that_work(columns, provider, cells, lambda column, cell: run(column, first, cell, 0.01, 0.02), about)
    for column in columns:
        if column.key == OURS and not o.ours:
            about["chosen"][provider] = column.chosen(cells[0])
    rows, loads = report.alternate(columns, [({GROUP: name}, cell) for name in over for cell in cells], o.rounds, run)
    about["groups"] += list(over)
    about["load_in_rounds"] += loads
    for column in columns:
        example = next((c for c in cells if column.has(c) and c.size >= 64 * KIB), next(filter(column.has, cells)))
        about["columns"].setdefault(column.key, {"title": column.title, "wire": column.wire,
                                                 "command": column.shown(example, o.warmup, o.seconds)})
    return rows, cells


def measure(o, columns, plugins, env, p, about):
    """The rows and cells of all runs; what was measured how goes to `about`."""
    check_programs(columns, p)
    fabric, start = Libfabric(o.libfabric), time.monotonic()
    providers = list(dict.fromkeys(fabric.exact(name) for name in o.provider.split(",")))
    congestions = controls(o.cc, o.build, p) if any(core(name) in OVER_TCP for name in providers) else []
    about |= {"libfabric": fabric.version(), "ucx": machine.first_line("ucx_info", "-v"), "providers": providers,
              "congestion_controls": [c.name for c in congestions], "groups": [], "columns": {}, "chosen": {},
              "left_out": [], "load_in_rounds": [], "libraries_differ": libraries_differ(columns, fabric)}
    rows, cells = [], []
    for provider in providers:
        some = measure_provider(o, columns, provider, congestions, about)
        rows, cells = rows + some[0], cells + some[1]
    about["seconds"] = round(time.monotonic() - start, 1)
    about["unverified"] = sorted(set().union(*(c.unverified for c in congestions)))
    return rows, cells


# ---- results ----

# What is to be reached: (metric, which cells, peer, bound, in words)
TARGETS = [
    ("gb_s", lambda c: c.kind == "bw" and c.size >= 64 * KIB, "rdm_tagged_bw", 0.95, "bandwidth from 64 KiB"),
    ("mean", lambda c: c.kind == "lat" and c.size == 8, "fi_pingpong", 1.15, "half round trip at 8 B"),
    ("gb_s", lambda c: c.kind == "bw", "aws", 1, "bandwidth"),
    ("mean", lambda c: c.kind == "lat", "aws", 1, "half round trip"),
]


def lead(cell):
    size = {"size": size_name(cell.size)}
    if cell.kind == "lat":
        return size
    return size | {"comms": str(cell.comms), "window": str(cell.window), "buffers": "1" if cell.one_buffer else "all"}


def describe(cell):
    name = f"{cell.kind} {size_name(cell.size)}"
    if cell.kind == "bw":
        name += f" x{cell.comms} window {cell.window}" + (", one buffer" if cell.one_buffer else "")
    return name


def tables(results, group, cells):
    cells = [c for c in cells if any(results.rows(group, c, column.key) for column in results.columns)]
    moving = [c for c in cells if c.kind == "bw"]
    small = [c for c in moving if c.size <= 4 * KIB]
    pings = [c for c in cells if c.kind == "lat"]
    wanted = [
        ("bandwidth, GB/s (1e9 bytes): median (least-greatest)", moving, "gb_s", spread_cell(results, "gb_s")),
        ("messages/s: median (least-greatest)", small, "messages_s", spread_cell(results, "messages_s")),
        ("half round trip, us: mean of a run: median (least-greatest)", pings, "mean", spread_cell(results, "mean")),
        ("half round trip, us: p50 (p99), medians", pings, "p50", with_second(results, "p50", "p99")),
        ("CPU-seconds per GB of both processes: median (GB/s in brackets)", moving, "cpu_s_per_gb",
         with_second(results, "cpu_s_per_gb", "gb_s")),
    ]
    return [(f"{caption}; {group}", *table(results, group, some, metric, text, lead))
            for caption, some, metric, text in wanted if some]


def targets(_):
    return TARGETS


def facts(about):
    chosen = ", ".join(f"{protocol} over {provider}" for provider, protocol in about["chosen"].values())
    controls_ = ", ".join(about["congestion_controls"])
    return [
        f"{about['date']}; {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB; Linux {about['kernel']}",
        f"libfabric {about['libfabric']}, providers {', '.join(about['providers'])}"
        + (f"; TCP congestion control, verified on every socket: {controls_}" if controls_ else "")
        + (f"; protocols of Railyard: {chosen}" if chosen else ""),
        f"railyard {about['railyard']}; UCX {about['ucx'].removeprefix('# ')}; {about['compiler']}",
        f"loopback, two processes, one thread each, {about['bound']}; {about['rounds']} round(s), "
        f"{about['timed_s']:g} s a cell after {about['warmup_s']:g} s warm-up; {about['seconds']:.0f} s in all",
        load_fact(about),
    ] + [f"left out: {words}" for words in about["left_out"]]


def panels(results, about, cells):
    moving = [c for c in cells if c.kind == "bw"]
    lines = [(f"{n} comm{'s' if n > 1 else ''}, window {window}" + (", one buffer" if one else ""),
              [c for c in moving if (c.comms, c.window, c.one_buffer) == (n, window, one)])
             for n, window, one in sorted({(c.comms, c.window, c.one_buffer) for c in moving})]
    return report.bandwidth_panels(results, groups(about), "", lines)


def groups(about):
    return about["groups"]


def section_title(group):
    return group


def extra_sections(o, about):
    return [], {}


def notes(about, quiet):
    found = load_warnings(about, quiet) + about["libraries_differ"]
    found += [f"WARNING: Railyard uses {ours}, the others {provider}."
              for provider, (ours, _) in about["chosen"].items() if ours != provider]
    if about["unverified"]:
        found.append(f"WARNING: not all sockets were seen, so their congestion control is not known: "
                     f"{', '.join(about['unverified'])}.")
    return found
