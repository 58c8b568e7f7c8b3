"""A real Slurm on this machine: munge, MariaDB, slurmdbd, slurmctld and slurmd, for tests.

    python tests/slurm/cluster.py FOLDER      starts one, says how to use it, stops it on Ctrl-C

One node, said to have more cores and memory than it has, two stand-in GPUs (device files that are always
there), accounting with a database. Everything lies in one folder and listens on the address of the host's own
name only (in a container that may not be loopback; no one without the new munge key is served). Nothing
outside the folder is written, and only processes that were started here are stopped, by their ids.
Needs root, because slurmd starts jobs as other users would.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PACKAGES = "slurmctld slurmd slurm-client munge slurmdbd mariadb-server"
PROGRAMS = (
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "sbatch",
    "sacctmgr",
)
COMMANDS = ("sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
SECONDS = 60.0  # for a daemon to answer
CPUS, MEMORY_MB, GPUS = 16, 64_000, 2


class ClusterError(Exception):
    """A daemon did not start; the message ends with what all of them logged."""


def missing() -> str | None:
    """Why there can be no Slurm here, or None."""
    os.environ["PATH"] += os.pathsep + "/usr/sbin:/sbin"  # where Debian has the daemons
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install --no-install-recommends {PACKAGES}"
    return None if os.geteuid() == 0 else "the daemons of a Slurm want to be root"


class Cluster:
    """`with Cluster(folder) as cluster: subprocess.run([…], env=os.environ | cluster.environment)`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = socket.gethostname().split(".")[0]
        # Where the daemons listen: they bind to their host's name, which is loopback on most machines.
        self.address = socket.gethostbyname(socket.gethostname())
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = dict(zip(("database", "dbd", "ctld", "node"), free_ports(4), strict=True))

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find this Slurm.

        The variable alone will not do: Snakemake's job step drops all of `SLURM_*` but a few before it calls
        `srun`. So the commands come first on PATH, each with the variable set.
        """
        path = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def __enter__(self) -> "Cluster":
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # --- starting -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        for name in ("bin", "logs", "database", "munge", "state", "spool"):
            (self.folder / name).mkdir(parents=True, mode=0o755)
        self._write_configuration()
        self._write_commands()
        self._start_munge()
        self._start_database()
        self._launch("slurmdbd", "slurmdbd", "-D")
        self._wait("slurmdbd", lambda: self.ask("sacctmgr", "-n", "list", "cluster"))
        for entity in (
            ("cluster", "test"),
            ("account", "lab", "Cluster=test"),
            ("user", "root", "Account=lab", "DefaultAccount=lab"),
        ):
            if not self.ask("sacctmgr", "-i", "add", *entity):
                raise self._error(f"sacctmgr add {' '.join(entity)} failed")
        self._launch("slurmctld", "slurmctld", "-D", "-i")
        self._launch("slurmd", "slurmd", "-D", "-N", self.host)
        self._wait("slurmd", lambda: self.output("sinfo", "-h", "-o", "%t").startswith("idle"))

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        (folder / "key").write_bytes(secrets.token_bytes(128))
        (folder / "key").chmod(0o400)
        files = [f"--{kind}-file={folder / kind}" for kind in ("key", "pid", "seed")]
        self._launch(
            "munged",
            *("munged", "--foreground", "--force", f"--socket={folder / 'socket'}"),
            *(f"--log-file={self.folder / 'logs' / 'munged.log'}", *files),
        )
        self._wait("munged", lambda: self.ask("munge", "-n", f"--socket={folder / 'socket'}"))

    def _start_database(self) -> None:
        data, defaults = self.folder / "database", "--no-defaults"
        with open(self.folder / "logs" / "install-db", "wb") as log:
            install = ("--user=root", f"--datadir={data}", "--auth-root-authentication-method=normal")
            done = subprocess.run(
                ["mariadb-install-db", defaults, *install, "--skip-test-db"], stdout=log, stderr=log
            )
        if done.returncode:
            raise self._error("mariadb-install-db failed")
        self._launch(
            "mariadbd",
            *("mariadbd", defaults, "--user=root", f"--datadir={data}", f"--socket={data / 'socket'}"),
            *("--bind-address=127.0.0.1", f"--port={self.ports['database']}", f"--pid-file={data / 'pid'}"),
            *("--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve"),
        )
        grant = "CREATE DATABASE slurm; GRANT ALL ON slurm.* TO 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm'"
        client = ("mariadb", defaults, f"--socket={data / 'socket'}", "--user=root", "-e")
        self._wait("mariadbd", lambda: self.ask(*client, "SELECT 1"))
        if not self.ask(*client, grant):
            raise self._error("the database refused to make Slurm's")

    def _write_configuration(self) -> None:
        socket_path = self.folder / "munge" / "socket"
        dbd = self.folder / "slurmdbd.conf"
        dbd.touch(mode=0o600)
        dbd.write_text(
            "AuthType=auth/munge\n"
            f"AuthInfo=socket={socket_path}\n"
            "CommunicationParameters=NoInAddrAny\n"
            f"DbdHost={self.host}\nDbdAddr={self.address}\nDbdPort={self.ports['dbd']}\n"
            "StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\n"
            f"StoragePort={self.ports['database']}\nStorageLoc=slurm\nStorageUser=slurm\nStoragePass=slurm\n"
            f"SlurmUser=root\nPidFile={self.folder / 'state' / 'slurmdbd.pid'}\n"
        )
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        (self.folder / "slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost={self.host}({self.address})\n"
            f"SlurmctldPort={self.ports['ctld']}\nSlurmdPort={self.ports['node']}\n"
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\n"
            f"SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket={socket_path}\n"
            f"StateSaveLocation={self.folder / 'state'}\nSlurmdSpoolDir={self.folder / 'spool'}\n"
            f"SlurmctldPidFile={self.folder / 'state' / 'slurmctld.pid'}\n"
            f"SlurmdPidFile={self.folder / 'state' / 'slurmd.pid'}\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\n"
            "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\nGresTypes=gpu\n"
            "SlurmdParameters=config_overrides\nSchedulerParameters=sched_min_interval=100000\n"
            "KillWait=10\nMinJobAge=300\nInactiveLimit=0\nWaitTime=0\n"
            "JobAcctGatherType=jobacct_gather/linux\n"
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStoreFlags=job_comment\n"
            f"AccountingStorageHost={self.address}\n"
            f"AccountingStoragePort={self.ports['dbd']}\nAccountingStorageTRES=gres/gpu\n"
            f"AccountingStoragePass={socket_path}\n"
            f"NodeName={self.host} NodeAddr={self.address} CPUs={CPUS} RealMemory={MEMORY_MB} "
            f"Gres=gpu:{GPUS}\n"
            f"PartitionName=main Nodes={self.host} Default=YES MaxTime=INFINITE State=UP\n"
        )

    def _write_commands(self) -> None:
        for name in COMMANDS:
            command = self.folder / "bin" / name
            command.write_text(
                f'#!/bin/sh\nSLURM_CONF="{self.folder}/slurm.conf" exec "{shutil.which(name)}" "$@"\n'
            )
            command.chmod(0o755)

    def _launch(self, name: str, *command: str) -> None:
        with open(self.folder / "logs" / name, "wb") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not ready():
            if self.processes[name].poll() is not None:
                raise self._error(f"{name} ended with exit code {self.processes[name].returncode}")
            if time.monotonic() > end:
                raise self._error(f"{name} does not answer after {SECONDS:.0f} s")
            time.sleep(0.1)

    def _error(self, problem: str) -> ClusterError:
        return ClusterError(f"no Slurm could be started: {problem}\n{self.logs()}")

    def logs(self, lines: int = 30) -> str:
        """The ends of all daemons' logs."""
        files = sorted((self.folder / "logs").iterdir())
        ends = (file.read_text(errors="replace").splitlines()[-lines:] for file in files)
        return "\n".join(
            f"--- {file.name}\n" + "\n".join(end) for file, end in zip(files, ends, strict=True) if end
        )

    # --- using and stopping -------------------------------------------------------------------------------

    def ask(self, *command: str) -> bool:
        """Whether a command succeeds."""
        run = subprocess.run(
            command, env=os.environ | self.environment, stdin=subprocess.DEVNULL, capture_output=True
        )
        return run.returncode == 0

    def output(self, *command: str) -> str:
        """What a command prints."""
        environment = os.environ | self.environment
        return subprocess.run(command, env=environment, capture_output=True, text=True).stdout

    def stop(self) -> None:
        """Cancel what runs, then end the daemons, each by its id, in the order of who needs whom."""
        if "slurmd" in self.processes:
            self.ask("scancel", "--signal=KILL", "--full", "--user=root")
            self.ask("scancel", "--user=root")
            end = time.monotonic() + 15
            while self.output("squeue", "-h", "-o", "%i").strip() and time.monotonic() < end:
                time.sleep(0.2)
        for name in reversed(self.processes):
            process = self.processes[name]
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()


def free_ports(n: int) -> list[int]:
    """Ports of loopback that nothing listens on."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def main() -> int:
    if len(sys.argv) != 2 or (problem := missing()):
        print(problem if len(sys.argv) == 2 else __doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Cluster(Path(sys.argv[1]).resolve()) as cluster:
            print("\n".join(f"export {name}={value}" for name, value in cluster.environment.items()))
            print("# Ctrl-C stops it", file=sys.stderr, flush=True)
            signal.pause()
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
