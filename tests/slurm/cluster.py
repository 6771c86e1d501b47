#!/usr/bin/env python3
"""A Slurm of its own on this machine, for tests: munged, slurmctld and two slurmd, each "node" with four stand-in GPUs.

    tests/slurm/cluster.py COMMAND...     # starts it, runs COMMAND with SLURM_CONF set, stops it

Nothing of it outlives the command, and nothing of a Slurm that this machine may really belong to is touched: ports,
sockets, keys and folders are its own."""

import contextlib
import getpass
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAMS = ["munged", "slurmctld", "slurmd", "sinfo", "srun", "sbatch", "scontrol", "scancel", "unshare"]
NODES = 2
GPUS = 4
CPUS = 8  # of each node, whatever the machine has (SlurmdParameters=config_overrides)
START_SECONDS = 30


class Unavailable(Exception):
    """This machine cannot run it; the text says why."""


def find(program):
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def end_with_this_process():
    """Starts this program again in a PID namespace: whatever ends it, be it ctest's time limit, ends every daemon and every job as well."""
    inside = "LFM2_TEST_NAMESPACE"
    if os.environ.get(inside) == str(os.getppid()) == "1":
        return
    space = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if find("unshare") is None or subprocess.run([*space, "true"], capture_output=True).returncode != 0:
        raise Unavailable("no PID namespaces (unshare --pid)")
    os.environ[inside] = "1"
    # The shell is the init of the namespace, and reaps the daemons.
    os.execvp("unshare", [*space, "sh", "-c", '"$@"; exit $?', "init", sys.executable, *sys.argv])


class Cluster:
    def __init__(self):
        missing = [program for program in PROGRAMS if find(program) is None]
        if missing:
            raise Unavailable(f"no {', '.join(missing)} here (Debian packages slurm-wlm and munge)")
        if os.geteuid() != 0:
            raise Unavailable("slurmd starts jobs as root only")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lfm2-slurm-"))
        self.folder.chmod(0o755)
        self.nodes = [f"n{i}" for i in range(NODES)]
        self.started = []  # the pid files of daemons, in the order of their start

    def write_configuration(self):
        folder = self.folder
        for name in ["etc", "run", "log", "state"] + [f"spool.{n}" for n in self.nodes] + [f"tmp.{n}" for n in self.nodes]:
            (folder / name).mkdir()
        host = socket.gethostname().split(".")[0]
        ports = free_ports(1 + NODES)
        key = folder / "etc/munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for gpu in range(GPUS):
            (folder / f"etc/gpu{gpu}").symlink_to("/dev/null")
        options = {
            "ClusterName": "test", "SlurmctldHost": f"{host}(127.0.0.1)", "SlurmUser": getpass.getuser(), "SlurmdUser": getpass.getuser(),
            "AuthInfo": f"socket={folder}/run/munge.sock", "SlurmctldPort": ports[0],
            "StateSaveLocation": folder / "state", "SlurmdSpoolDir": f"{folder}/spool.%n",
            "TmpFS": f"{folder}/tmp.%n",  # each node needs its own, because PMIx keeps its sockets there
            "SlurmctldPidFile": folder / "run/slurmctld.pid", "SlurmdPidFile": f"{folder}/run/slurmd.%n.pid",
            "SlurmctldLogFile": folder / "log/slurmctld.log", "SlurmdLogFile": f"{folder}/log/slurmd.%n.log",
            "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none", "MpiDefault": "none",
            "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CPU", "SlurmdParameters": "config_overrides",
            "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0",
            "AccountingStorageType": "accounting_storage/none", "JobAcctGatherType": "jobacct_gather/none",
            "JobCompType": "jobcomp/filetxt", "JobCompLoc": folder / "log/jobcomp.log",
            "ReturnToService": 2, "KillWait": 5, "MinJobAge": 600,
            "PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "GresTypes": "gpu",
        }  # yapf: disable
        lines = [f"{name}={value}" for name, value in options.items()]
        for node, port in zip(self.nodes, ports[1:]):
            lines.append(f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} RealMemory=8000 Gres=gpu:{GPUS}")
        lines.append("PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=10")
        lines.append("PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF")
        (folder / "etc/slurm.conf").write_text("\n".join(lines) + "\n")
        (folder / "etc/gres.conf").write_text(f"NodeName={','.join(self.nodes)} Name=gpu File={folder}/etc/gpu[0-{GPUS - 1}]\n")
        (folder / "etc/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        os.environ["SLURM_CONF"] = str(folder / "etc/slurm.conf")

    def start_daemon(self, pid_file, *command):
        done = subprocess.run([find(command[0]), *command[1:]], capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(f"{command[0]} did not start: {(done.stderr + done.stdout).strip().splitlines()[-1:]}")
        self.started.append(self.folder / "run" / pid_file)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def start(self):
        self.write_configuration()
        run, log = self.folder / "run", self.folder / "log"
        self.start_daemon("munged.pid", "munged", "--force", f"--key-file={self.folder}/etc/munge.key", f"--socket={run}/munge.sock",
                          f"--pid-file={run}/munged.pid", f"--log-file={log}/munged.log", f"--seed-file={run}/munge.seed")
        self.start_daemon("slurmctld.pid", "slurmctld", "-f", os.environ["SLURM_CONF"])
        for node in self.nodes:  # each has its own host name, because MPI libraries name shared memory after it
            self.start_daemon(f"slurmd.{node}.pid", "unshare", "--uts", "sh", "-c", 'hostname "$1" && exec "$2" -N "$1" -f "$SLURM_CONF"', "node", node,
                              find("slurmd"))
        end = time.monotonic() + START_SECONDS
        states = ""
        while time.monotonic() < end:
            states = subprocess.run(["sinfo", "-h", "-N", "-p", "low", "-o", "%T"], capture_output=True, text=True).stdout
            if states.split() == ["idle"] * NODES:
                return
            time.sleep(0.2)
        raise Unavailable(f"after {START_SECONDS} s the nodes are: {states.split()}, see {log}")

    def stop(self):
        if "SLURM_CONF" in os.environ and len(self.started) > 1:
            subprocess.run(["scancel", "--user", getpass.getuser()], capture_output=True)
            end = time.monotonic() + 15
            while time.monotonic() < end and subprocess.run(["squeue", "-h"], capture_output=True, text=True).stdout.strip():
                time.sleep(0.2)
        for pid_file in reversed(self.started):
            self.end_daemon(pid_file)
        os.environ.pop("SLURM_CONF", None)
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def end_daemon(pid_file):
        try:
            pid = int(pid_file.read_text())
            os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + 10
            while time.monotonic() < end:
                os.kill(pid, 0)
                time.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            return  # the process has ended

    def __exit__(self, *unused):
        self.stop()


def main():
    try:
        end_with_this_process()
        with Cluster() as cluster:
            print(f"SLURM_CONF={os.environ['SLURM_CONF']}, nodes {' '.join(cluster.nodes)}", file=sys.stderr)
            return subprocess.run(sys.argv[1:] or [os.environ.get("SHELL", "bash")]).returncode
    except Unavailable as reason:
        print(f"No Slurm for tests: {reason}", file=sys.stderr)
        return 77


if __name__ == "__main__":
    sys.exit(main())
