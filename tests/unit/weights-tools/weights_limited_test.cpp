// The child process for untrusted files: what it may not do, and what its death looks like.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <system_error>
#include <thread>

#include "base/checked_file.h"
#include "support/weights_support.h"
#include "weights-tools/commands/commands.h"
#include "weights-tools/commands/limited_child.h"

namespace lfm2 {
namespace {

using test::expect_error;
using test::golden_dir;
using test::TemporaryFolder;

TEST(LimitedChildTest, ReturnsWhatTheWorkReturns) {
  EXPECT_EQ(run_limited("f", {}, [] { return std::string("fine"); }), "fine");
  EXPECT_EQ(run_limited("f", {}, [] { return std::string("a\x1b[2Jb\nc"); }), "a\\x1b[2Jb\\x0ac");
  EXPECT_LT(run_limited("f", {}, [] { return std::string(1 << 20, 'x'); }).size(), 10000u);
}

TEST(LimitedChildTest, ErrorsComeThrough) {
  expect_error([] { run_limited("f", {}, []() -> std::string { throw Error(ExitCode::kNoInput, "g: missing"); }); },
               ExitCode::kNoInput, {"g: missing"});
  expect_error([] { run_limited("f", {}, []() -> std::string { throw std::runtime_error("odd"); }); }, ExitCode::kData,
               {"odd"});
  expect_error([] { run_limited("f", {}, []() -> std::string { throw std::bad_alloc(); }); }, ExitCode::kData,
               {"memory"});
}

TEST(LimitedChildTest, ErrorsOfTheSystemAreNoErrorsOfTheFile) {
  expect_error(
      [] {
        run_limited("f", {}, []() -> std::string {
          throw std::filesystem::filesystem_error("g", std::make_error_code(std::errc::io_error));
        });
      },
      ExitCode::kIo, {"g"});
}

TEST(LimitedChildTest, DeathIsOneLine) {
  const auto dies = [](const std::function<std::string()>& work, const std::string& part) {
    expect_error([&] { run_limited("stage.h5", {}, work); }, ExitCode::kData,
                 {"stage.h5: the process that read it", part});
  };
  const auto by_signal = [&](int number) {
    dies(
        [number] {
          std::signal(number, SIG_DFL);  // the default handler, not that of the sanitizers
          ::raise(number);
          return std::string();
        },
        "signal " + std::to_string(number));
  };
  by_signal(SIGSEGV);
  by_signal(SIGABRT);
  by_signal(SIGBUS);
  by_signal(SIGFPE);
  dies([]() -> std::string { ::_exit(0); }, "without an answer");
  dies([]() -> std::string { ::_exit(7); }, "without an answer");
}

TEST(LimitedChildTest, TimeIsLimited) {
  const auto start = std::chrono::steady_clock::now();
  ChildLimits limits;
  limits.cpu_seconds = 1;
  expect_error(
      [&] {
        run_limited("f", limits, [] {
          for (volatile uint64_t i = 0;;) {
            static_cast<void>(i);
          }
          return std::string();
        });
      },
      ExitCode::kData, {"f: ", "1 s"});
  limits.wall_seconds = 1;
  expect_error(
      [&] {
        run_limited("f", limits, [] {
          std::this_thread::sleep_for(std::chrono::seconds(100));
          return std::string();
        });
      },
      ExitCode::kData, {"f: ", "ended after 1 s"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// A child that sends nothing more, or too much, and does not end.
TEST(LimitedChildTest, NobodyWaitsForAChildThatDoesNotEnd) {
  const auto start = std::chrono::steady_clock::now();
  ChildLimits limits;
  limits.wall_seconds = 1;
  const auto stays = [&](const std::function<void(int)>& each_descriptor, const std::string& part) {
    expect_error(
        [&] {
          run_limited("f", limits, [&]() -> std::string {
            for (int fd = 3; fd < 64; ++fd) each_descriptor(fd);
            for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
          });
        },
        ExitCode::kData, {"f: ", part});
  };
  stays([](int fd) { ::close(fd); }, "ended after 1 s");
  stays(
      [](int fd) {
        struct stat status {};
        // Leaves alone the files that this test was started with.
        if (::fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode)) return;
        const std::string much(9000, '\0');
        static_cast<void>(!::write(fd, much.data(), much.size()));
      },
      "makes no sense");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(LimitedChildTest, MemoryIsLimited) {
  expect_error(
      [] {
        run_limited("f", {}, [] {
          std::vector<std::string> all;
          for (;;) all.emplace_back(size_t{100} << 20, 'x');
          return std::string();
        });
      },
      ExitCode::kData, {"1024 MiB"});
}
#endif

// Each call that must fail reports its number.
TEST(LimitedChildTest, NothingIsWrittenStartedOrSent) {
  const TemporaryFolder folder;
  const std::string path = folder / "f";
  test::write_bytes(path, "before");
  const pid_t parent = ::getpid();
  const std::string answer = run_limited("f", {}, [&] {
    std::string done;
    for (const int flags : {O_WRONLY, O_RDWR, O_RDONLY | O_TRUNC, O_WRONLY | O_CREAT}) {
      const int fd = ::open(path.c_str(), flags, 0600);
      if (fd >= 0 && ::write(fd, "x", 1) == 1) done += "write ";
    }
    if (::unlink(path.c_str()) == 0) done += "unlink ";
    if (::rename(path.c_str(), (path + "2").c_str()) == 0) done += "rename ";
    if (::socket(AF_INET, SOCK_STREAM, 0) >= 0) done += "socket ";
    if (::fork() >= 0) done += "fork ";
    if (::syscall(SYS_tgkill, parent, parent, 0) == 0) done += "tgkill ";
    if (::kill(parent, 0) == 0) done += "kill ";
    if (const int fd = ::open(path.c_str(), O_RDONLY); fd < 0 || ::fcntl(fd, F_SETOWN, parent) == 0) done += "owner ";
    ::execl("/bin/true", "true", nullptr);
    return done + CheckedFile(path).path().filename().string();
  });
  EXPECT_EQ(answer, "f");
  EXPECT_EQ(test::read_bytes(path), "before");
}

VerifyOptions untrusted(const std::filesystem::path& model) {
  VerifyOptions options;
  options.model = model;
  options.untrusted = true;
  return options;
}

TEST(LimitedChildTest, VerifyReadsEveryForm) {
  const TemporaryFolder folder;
  const Console quiet{.progress = ProgressMode::kOff, .quiet = true};
  run_verify(untrusted(golden_dir() / "tiny-dense"), quiet);
  run_verify(untrusted(test::golden_shards("tiny-dense", 4)), quiet);
  VerifyOptions against = untrusted(test::golden_shards("tiny-dense", 4));
  against.against = golden_dir() / "tiny-dense";
  run_verify(against, quiet);
  against.against = golden_dir() / "tiny-moe";
  expect_error([&] { run_verify(against, quiet); }, ExitCode::kData, {"configuration differs"});
  expect_error([&] { run_verify(untrusted(folder / "none"), quiet); }, ExitCode::kNoInput, {"none"});
  test::write_bytes(folder / "x.safetensors", "junk");
  expect_error([&] { run_verify(untrusted(folder / "x.safetensors"), quiet); }, ExitCode::kData, {"x.safetensors"});
}

}  // namespace
}  // namespace lfm2
