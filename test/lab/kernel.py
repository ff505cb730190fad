# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel and its initramfs, made once and kept.

The kernel is Debian's package, downloaded and unpacked, never installed. Two
files come of it: `vmlinux`, taken out of the compressed image because an
emulated processor would need seconds to do that at every boot, and an
initramfs with busybox, test/lab/init and only the modules the lab needs.
"""
import contextlib
import fcntl
import glob
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
META = "linux-image-amd64"  # names the newest one
# In the order of loading, each behind what it needs. rdma_rxe asks for crc32 by the name of an algorithm, which no
# dependency shows: without it a device cannot be added (ENOENT).
MODULES = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay", "veth", "bridge", "sch_netem", "sch_tbf",
           "tcp_bbr", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_cm", "rdma_ucm"]
# What of the package is unpacked: a tenth of it has all modules above and what they need.
PARTS = ["boot/vmlinuz-*", "lib/modules/*/modules.*"] + [f"lib/modules/*/kernel/{d}/*" for d in (
    "arch/x86/crypto", "crypto", "drivers/char", "drivers/infiniband/core", "drivers/infiniband/sw", "drivers/net",
    "drivers/virtio", "fs/9p", "fs/configfs", "fs/fscache", "fs/netfs", "fs/overlayfs", "lib", "net")]


class Impossible(Exception):
    """Why there can be no lab here, in one line."""


def cache():
    return pathlib.Path(os.environ.get("RAIL_LAB_CACHE") or HERE.parent.parent / "build/lab/cache").resolve()


@contextlib.contextmanager
def locked(folder):
    """One process at a time prepares; the others find it done."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def output(argv, why):
    done = subprocess.run(argv, text=True, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise Impossible(f"{why}: {' '.join(map(str, argv[:3]))}: {last}")
    return done.stdout


def package():
    """The package to take: RAIL_LAB_KERNEL, or what Debian's meta package depends on today."""
    if name := os.environ.get("RAIL_LAB_KERNEL"):
        return name
    depends = output(["apt-cache", "depends", META], "no kernel for the lab")
    m = re.search(r"Depends: (linux-image-\S+)", depends)
    if not m:
        raise Impossible(f"no kernel for the lab: apt knows no {META}; RAIL_LAB_KERNEL names another package")
    return m.group(1)


def download(folder):
    """The .deb in `folder`, downloaded as the current user: that needs no root, only apt's lists."""
    why = "no kernel for the lab"

    def get():
        name = package()
        done = subprocess.run(["apt-get", "-q", "-o", "Acquire::Retries=3", "download", name], cwd=folder, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL)
        return name, done
    if not shutil.which("apt-get"):
        raise Impossible(f"{why}: there is no apt-get here to download Debian's {META}")
    try:
        name, done = get()
        stale = done.returncode != 0
    except Impossible:
        stale = True
    if stale:  # lists that are missing or older than the mirror
        if os.geteuid() != 0:
            raise Impossible(f"{why}: apt's lists do not lead to {META}; run: sudo apt-get update")
        output(["apt-get", "-q", "update"], why)
        name, done = get()
    debs = list(folder.glob("*.deb"))
    if done.returncode or len(debs) != 1:
        last = (done.stderr.strip().splitlines() or ["nothing came"])[-1]
        raise Impossible(f"{why}: apt-get download {name}: {last}")
    return name, debs[0]


def unpack(deb, folder):
    tar = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
    wanted = ["--wildcards"] + [f"./{part}" for part in PARTS]
    # Parts that this kernel has not are no fault: what is needed and missing shows when modules are looked up.
    subprocess.run(["tar", "-x", "-C", folder, *wanted], stdin=tar.stdout, stderr=subprocess.DEVNULL, check=False)
    tar.stdout.close()
    if tar.wait() != 0:
        raise Impossible(f"no kernel for the lab: {deb} cannot be unpacked")


def plain_kernel(image):
    """The ELF file inside a compressed kernel, or the image itself where the compression is another one."""
    at = image.find(b"\xfd7zXZ\0")
    while at >= 0:
        with contextlib.suppress(lzma.LZMAError):
            plain = lzma.LZMADecompressor().decompress(image[at:])
            if plain.startswith(b"\x7fELF"):
                return plain
        at = image.find(b"\xfd7zXZ\0", at + 1)
    return image


def module_files(root, version):
    """Files of MODULES and of what they need, in the order of loading."""
    folder = root / "lib/modules" / version
    subprocess.run([shutil.which("depmod", path=search_path()), "-b", root, version], check=True, capture_output=True)
    needs, by_name = {}, {}
    for line in (folder / "modules.dep").read_text().splitlines():
        file, _, rest = line.partition(":")
        needs[file] = rest.split()
        by_name[pathlib.Path(file).name.split(".")[0].replace("-", "_")] = file
    builtin = (folder / "modules.builtin").read_text()
    ordered = []
    for name in MODULES:
        if name in by_name:  # modules.dep lists what a module needs last first
            ordered += [f for f in [*reversed(needs[by_name[name]]), by_name[name]] if f not in ordered]
        elif f"/{name}.ko" not in builtin:
            raise Impossible(f"the lab's kernel {version} has no module {name}")
    return [folder / f for f in ordered]


def search_path():
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def make_kernel(folder):
    """folder/vmlinux and folder/modules/NN-NAME.ko."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        scratch = pathlib.Path(scratch)
        _, deb = download(scratch)
        root, made = scratch / "root", scratch / "made"
        root.mkdir()
        (made / "modules").mkdir(parents=True)
        unpack(deb, root)
        images = glob.glob(f"{root}/boot/vmlinuz-*")
        if len(images) != 1:
            raise Impossible(f"no kernel for the lab: {deb.name} has {len(images)} images")
        version = images[0].partition("vmlinuz-")[2]
        (made / "vmlinux").write_bytes(plain_kernel(pathlib.Path(images[0]).read_bytes()))
        for number, file in enumerate(module_files(root, version)):
            data = file.read_bytes()
            name = file.name.removesuffix(".xz")
            data = lzma.decompress(data) if name != file.name else data
            (made / "modules" / f"{number:02d}-{name}").write_bytes(data)
        (made / "version").write_text(version)
        made.rename(folder)


def make_initramfs(kernel, target, busybox):
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        root = pathlib.Path(scratch) / "root"
        for name in ("bin", "proc", "sys", "dev", "host", "over", "new"):
            (root / name).mkdir(parents=True)
        shutil.copy(busybox, root / "bin/busybox")
        shutil.copytree(kernel / "modules", root / "modules")
        shutil.copy(HERE / "init", root / "init")
        (root / "init").chmod(0o755)
        names = "\n".join(str(p.relative_to(root)) for p in sorted(root.rglob("*")))
        made = pathlib.Path(scratch) / "made"
        with open(made, "wb") as f:  # not compressed: reading it is cheaper than an emulated gunzip
            subprocess.run(["cpio", "-o", "-H", "newc", "--quiet", "-R", "0:0"], cwd=root, input=names.encode(),
                           stdout=f, check=True)
        made.rename(target)


def prepare():
    """(kernel, initramfs, version) to boot, from the cache where they are there already."""
    busybox = shutil.which("busybox", path=search_path())
    folder = cache()
    wanted = os.environ.get("RAIL_LAB_KERNEL", "default")
    with locked(folder):
        kernel = folder / f"kernel-{wanted}"
        recipe = hashlib.sha256("\n".join(MODULES + PARTS).encode()).hexdigest()
        stamp = kernel / "recipe"
        if not stamp.exists() or stamp.read_text() != recipe:
            shutil.rmtree(kernel, ignore_errors=True)
            make_kernel(kernel)
            stamp.write_text(recipe)
        version = (kernel / "version").read_text()
        parts = [version.encode(), recipe.encode(), (HERE / "init").read_bytes(), pathlib.Path(busybox).read_bytes()]
        initramfs = folder / f"initramfs-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"
        if not initramfs.exists():
            make_initramfs(kernel, initramfs, busybox)
        return kernel / "vmlinux", initramfs, version
