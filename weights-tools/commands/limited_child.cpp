// The child answers through a pipe with one byte of exit code and a text, whose form is checked. A child that a hostile
// file has taken over can still answer that all is right, but it can do nothing else.
#include "weights-tools/commands/limited_child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "base/checked_file.h"
#include "base/error.h"
#include "weights-tools/model/interrupt.h"

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
#define LFM2_SYSCALL_FILTER 1
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include <cstddef>
#include <vector>
#endif

// Sanitizers map more addresses than any limit would allow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LFM2_SHADOW_MEMORY 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LFM2_SHADOW_MEMORY 1
#endif
#endif

namespace lfm2 {

namespace {

constexpr size_t kMaxAnswerBytes = 8192;

#ifdef LFM2_SYSCALL_FILTER
// Allows only the system calls that reading files needs. Every other call fails with EPERM, as do opening a file for
// writing and signals to other processes.
void filter_system_calls() {
  const std::vector<uint32_t> allowed = {
      SYS_read,       SYS_pread64,       SYS_readv,           SYS_write,          SYS_close,        SYS_fstat,
      SYS_newfstatat, SYS_statx,         SYS_statfs,          SYS_fstatfs,        SYS_lseek,        SYS_getdents64,
      SYS_mmap,       SYS_munmap,        SYS_mremap,          SYS_mprotect,       SYS_brk,          SYS_madvise,
      SYS_futex,      SYS_rt_sigreturn,  SYS_rt_sigaction,    SYS_rt_sigprocmask, SYS_sigaltstack,  SYS_exit,
      SYS_exit_group, SYS_clock_gettime, SYS_clock_nanosleep, SYS_nanosleep,      SYS_gettimeofday, SYS_getpid,
      SYS_gettid,     SYS_readlinkat,    SYS_getcwd,          SYS_faccessat,      SYS_flock,        SYS_sched_yield,
      SYS_getrandom,  SYS_getrusage,     SYS_uname,
#ifdef __x86_64__
      SYS_stat,       SYS_lstat,         SYS_access,          SYS_readlink,       SYS_time,
#endif
  };
#ifdef __x86_64__
  constexpr uint32_t kArch = AUDIT_ARCH_X86_64;
#else
  constexpr uint32_t kArch = AUDIT_ARCH_AARCH64;
#endif
  std::vector<sock_filter> program;
  const auto statement = [&](uint16_t code, uint32_t k) { program.push_back(BPF_STMT(code, k)); };
  // Appends a test that skips the next `count` instructions unless the accumulator is k.
  const auto unless_equal = [&](uint32_t k, uint8_t count) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, k, 0, count));
  };
  const uint32_t refuse = SECCOMP_RET_ERRNO | EPERM;
  statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
  program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArch, 1, 0));
  statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  statement(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  for (uint32_t call : allowed) {
    unless_equal(call, 1);
    statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  // Appends code that returns one of two answers, after comparing an argument of the call with `value`.
  const auto by_argument = [&](uint32_t call, uint32_t argument, uint16_t test, uint32_t value, uint32_t if_true,
                               uint32_t if_false) {
    unless_equal(call, 4);
    statement(BPF_LD | BPF_W | BPF_ABS,
              // Loads the lower half of the 64-bit argument.
              static_cast<uint32_t>(offsetof(seccomp_data, args) + argument * sizeof(uint64_t)));
    program.push_back(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | test | BPF_K), value, 0, 1));
    statement(BPF_RET | BPF_K, if_true);
    statement(BPF_RET | BPF_K, if_false);
  };
  constexpr uint32_t kAllow = SECCOMP_RET_ALLOW, kWriting = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC;
  by_argument(SYS_openat, 2, BPF_JSET, kWriting, refuse, kAllow);
#ifdef __x86_64__
  by_argument(SYS_open, 1, BPF_JSET, kWriting, refuse, kAllow);
#endif
  by_argument(SYS_tgkill, 0, BPF_JEQ, static_cast<uint32_t>(::getpid()), kAllow, refuse);
  // F_SETOWN and the following commands decide which process gets the signals of a descriptor.
  by_argument(SYS_fcntl, 1, BPF_JGE, F_SETOWN, refuse, kAllow);
  statement(BPF_RET | BPF_K, refuse);
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    throw Error(ExitCode::kUnavailable,
                fmt::format("no filter of system calls for the process that reads: {}", std::strerror(errno)));
}
#else
void filter_system_calls() {}
#endif

void set_limit(decltype(RLIMIT_AS) which, uint64_t value) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max = std::min<rlim_t>(value, limit.rlim_max);
  ::setrlimit(which, &limit);
}

// The child must not be able to undo these settings.
void limit_this_process(const ChildLimits& limits, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent died before prctl() was called
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC); null >= 0) {
    ::dup2(null, STDIN_FILENO);
    ::dup2(null, STDOUT_FILENO);
    if (!limits.progress) ::dup2(null, STDERR_FILENO);
    ::close(null);
  }
#ifndef LFM2_SHADOW_MEMORY
  set_limit(RLIMIT_AS, limits.memory_bytes);
#endif
  set_limit(RLIMIT_CPU, limits.cpu_seconds);
  set_limit(RLIMIT_NOFILE, limits.open_files);
  set_limit(RLIMIT_FSIZE, 0);
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_NPROC, 0);
  filter_system_calls();
}

[[noreturn]] void run_child(int answer, pid_t parent, const ChildLimits& limits,
                            const std::function<std::string()>& work) {
  ExitCode code = ExitCode::kOk;
  std::string text;
  try {
    limit_this_process(limits, parent);
    text = work();
  } catch (const Error& error) {
    code = error.code();
    text = error.what();
  } catch (const std::bad_alloc&) {
    code = ExitCode::kData;
    text = fmt::format("needs more than {} MiB of memory", limits.memory_bytes >> 20);
  } catch (const std::system_error& error) {
    code = ExitCode::kIo;
    text = error.what();
  } catch (const std::exception& error) {
    code = ExitCode::kData;
    text = error.what();
  }
  text.resize(std::min(text.size(), kMaxAnswerBytes - 1));
  text.insert(text.begin(), static_cast<char>(code));
  const bool sent = ::write(answer, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::_exit(sent ? 0 : 1);
}

using Clock = std::chrono::steady_clock;

class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  // The wait status of the child; nothing if it still runs at the deadline.
  std::optional<int> wait_until(Clock::time_point deadline) {
    int status = 0;
    for (;;) {
      const pid_t found = ::waitpid(pid_, &status, WNOHANG);
      // The system keeps no status if SIGCHLD is ignored.
      if (found == pid_ || (found < 0 && errno != EINTR)) break;
      throw_if_interrupted();
      if (Clock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
};

// Reads the child's output until it closes the pipe. Returns false if the deadline comes first.
bool read_answer(const FileDescriptor& from, Clock::time_point deadline, std::string& answer) {
  answer.clear();
  for (;;) {
    throw_if_interrupted();
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd wait{from.get(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
    if (ready <= 0) continue;
    char piece[1024];
    const ssize_t got = ::read(from.get(), piece, sizeof piece);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    answer.append(piece, static_cast<size_t>(got));
    if (answer.size() > kMaxAnswerBytes) return true;
  }
}

bool is_known(int code) {
  for (ExitCode known : {ExitCode::kOk, ExitCode::kUsage, ExitCode::kData, ExitCode::kNoInput, ExitCode::kUnavailable,
                         ExitCode::kSoftware, ExitCode::kIo, ExitCode::kStopped})
    if (code == static_cast<int>(known)) return true;
  return false;
}

}  // namespace

std::string run_limited(const std::string& what, const ChildLimits& limits, const std::function<std::string()>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw Error(ExitCode::kIo, fmt::format("no pipe to a child process: {}", std::strerror(errno)));
  FileDescriptor from(ends[0]), to(ends[1]);
  const auto deadline = Clock::now() + std::chrono::seconds(limits.wall_seconds);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) throw Error(ExitCode::kIo, fmt::format("no child process: {}", std::strerror(errno)));
  if (pid == 0) run_child(to.get(), parent, limits, work);
  Child child(pid);
  to.close();
  const auto refuse = [&](const std::string& message) -> Error {
    return Error(ExitCode::kData, fmt::format("{}: the process that read it {}: do not use this file", what, message));
  };
  std::string answer;
  const bool answered = read_answer(from, deadline, answer);
  if (answer.size() > kMaxAnswerBytes) throw refuse("gave an answer that makes no sense");
  const std::optional<int> ended = answered ? child.wait_until(deadline) : std::nullopt;
  if (!ended) throw refuse(fmt::format("was ended after {} s", limits.wall_seconds));
  const int status = *ended;
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
    throw refuse(fmt::format("was killed, having used its {} s or more memory than there is", limits.cpu_seconds));
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    throw refuse(fmt::format("used more than {} s", limits.cpu_seconds));
  if (WIFSIGNALED(status))
    throw refuse(fmt::format("died of signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status))));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || answer.empty()) throw refuse("ended without an answer");
  const int code = static_cast<unsigned char>(answer.front());
  answer = printable(answer.substr(1));
  if (!is_known(code)) throw refuse("gave an answer that makes no sense");
  if (code != static_cast<int>(ExitCode::kOk)) throw Error(static_cast<ExitCode>(code), answer);
  return answer;
}

}  // namespace lfm2
