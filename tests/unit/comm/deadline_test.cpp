// A deadline ends the process by itself: in time, or when whoever started it is gone.
#include "comm/deadline.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>

namespace lfm2::test {
namespace {

using namespace std::chrono_literals;

TEST(DeadlineDeathTest, EndsTheProcessInTime) {
  EXPECT_EXIT(
      {
        const Deadline deadline(0.2, "the last line");
        std::this_thread::sleep_for(20s);
      },
      testing::ExitedWithCode(static_cast<int>(ExitCode::kLost)), "the last line");
}

TEST(DeadlineTest, DoesNothingOnceItIsDestroyed) {
  { const Deadline deadline(0.1, "too late"); }
  { const Deadline watching(0.1, "too late", "nobody is gone"); }
  std::this_thread::sleep_for(300ms);
}

// A process whose parent ends while it stands in MPI_Init, say. What it writes last comes through a pipe.
TEST(DeadlineTest, EndsTheProcessWhenItsParentIsGone) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    if (::fork() == 0) {
      ::dup2(pipe[1], STDERR_FILENO);
      const Deadline deadline(20, "in time", "an orphan");
      if (::write(STDERR_FILENO, "begun ", 6) != 6) ::_exit(1);
      std::this_thread::sleep_for(20s);
      ::_exit(0);
    }
    std::this_thread::sleep_for(500ms);  // the child has looked at its parent
    ::_exit(0);
  }
  ::close(pipe[1]);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  std::string text;
  std::array<char, 100> piece{};
  for (ssize_t count = 0; (count = ::read(pipe[0], piece.data(), piece.size())) > 0;)
    text.append(piece.data(), static_cast<size_t>(count));
  ::close(pipe[0]);
  EXPECT_EQ(text, "begun an orphan\n");
}

}  // namespace
}  // namespace lfm2::test
