// Which rank is blamed for a stall, and what a watchdog does about it.
#include "comm/watchdog.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "comm/wait.h"
#include "kernels/backend.h"
#include "support/local_watchdogs.h"
#include "support/shards.h"

namespace lfm2::test {
namespace {

constexpr double kTimeout = 10;
using Kind = Stall::Kind;

RankView computes(int rank, double idle) {
  return {.rank = rank, .activity = {.phase = Phase::kCompute, .unit = 5}, .idle_seconds = idle};
}
RankView receives(int rank, int peer, double idle) {
  return {.rank = rank, .activity = {.phase = Phase::kReceive, .unit = 5, .peer = peer}, .idle_seconds = idle};
}
RankView sends(int rank, int peer, double idle) {
  return {.rank = rank, .activity = {.phase = Phase::kSend, .unit = 5, .peer = peer}, .idle_seconds = idle};
}
RankView meets(int rank, double idle) {
  return {.rank = rank, .activity = {.phase = Phase::kMeet}, .idle_seconds = idle};
}
RankView stopped(RankView view) {
  view.silent_seconds = view.idle_seconds;
  return view;
}

void expect_stall(const std::vector<RankView>& views, int rank, Kind kind) {
  const std::optional<Stall> stall = find_stall(views, kTimeout);
  ASSERT_TRUE(stall);
  EXPECT_EQ(stall->rank, rank);
  EXPECT_EQ(stall->kind, kind);
}

TEST(FindStallTest, TheRankThatOthersWaitForIsBlamed) {
  expect_stall({sends(0, 1, 11), sends(1, 2, 12), computes(2, 12.5), receives(3, 2, 12)}, 2, Kind::kHangs);
  expect_stall({meets(0, 20), meets(1, 19), computes(2, 15), meets(3, 18)}, 2, Kind::kHangs);
  expect_stall({receives(0, 3, 11), receives(1, 0, 11), receives(2, 1, 11), computes(3, 10)}, 3, Kind::kHangs);
}

TEST(FindStallTest, AStoppedProcessIsBlamedWhateverItWaitedFor) {
  expect_stall({sends(0, 1, 11), stopped(receives(1, 0, 11)), receives(2, 1, 30)}, 1, Kind::kStopped);
  expect_stall({meets(0, 11), stopped(meets(1, 11)), meets(2, 12)}, 1, Kind::kStopped);
  RankView late = receives(1, 0, 10);  // the last heartbeat came a little after the last look
  late.deaf_seconds = 10;
  late.silent_seconds = 9.9;
  expect_stall({sends(0, 1, 10), late}, 1, Kind::kStopped);
}

TEST(FindStallTest, DisksMayTakeLonger) {
  const auto writes = [](double idle) {
    return RankView{.rank = 1, .activity = {.phase = Phase::kWrite}, .idle_seconds = idle};
  };
  EXPECT_FALSE(find_stall(std::vector{sends(0, 1, 90), writes(99)}, kTimeout));
  expect_stall({sends(0, 1, 90), writes(100)}, 1, Kind::kHangs);
}

// A wait that does not return from a call that it makes in each look, such as one of a driver.
TEST(FindStallTest, AWaitThatDoesNotLookAroundHangs) {
  RankView deaf = receives(1, 0, 12);
  deaf.deaf_seconds = 12;
  expect_stall({sends(0, 1, 12), deaf, receives(2, 1, 12)}, 1, Kind::kHangs);
}

TEST(FindStallTest, WhoeverWaitsForARankThatGetsOnIsNotStalled) {
  EXPECT_FALSE(
      find_stall(std::vector{sends(0, 1, 500), sends(1, 2, 400), computes(2, 9.9), receives(3, 2, 300)}, kTimeout));
  EXPECT_FALSE(find_stall(std::vector{meets(0, 500), computes(1, 2)}, kTimeout));
  EXPECT_FALSE(find_stall(std::vector{stopped(computes(0, 9)), receives(1, 0, 9)}, kTimeout));
}

TEST(FindStallTest, APlaceMayHaveALimitOfItsOwn) {
  RankView loads = computes(1, 50);
  loads.activity = {.phase = Phase::kLoad, .limit_seconds = 100};
  EXPECT_FALSE(find_stall(std::vector{meets(0, 500), loads}, kTimeout));
  loads.idle_seconds = 100;
  expect_stall({meets(0, 500), loads}, 1, Kind::kHangs);
}

TEST(FindStallTest, CirclesAndOtherHosts) {
  EXPECT_EQ(find_stall(std::vector{sends(0, 1, 11), receives(1, 0, 11)}, kTimeout)->kind, Kind::kCircle);
  // The watchdog of the other host knows more, so it gets time to speak first.
  EXPECT_FALSE(find_stall(std::vector{computes(0, 1), sends(1, 2, 15)}, kTimeout));
  expect_stall({sends(0, 1, 21), sends(1, 2, 21)}, 2, Kind::kUnseen);
  EXPECT_FALSE(find_stall(std::vector{meets(0, 15), meets(1, 15)}, kTimeout));
  EXPECT_EQ(find_stall(std::vector{meets(0, 21), meets(1, 21)}, kTimeout)->kind, Kind::kMeeting);
}

TEST(StampsTest, KeepsTheNewest) {
  RankStamps stamps;
  stamps.start(3);
  for (int unit = 0; unit < 100; ++unit) stamps.enter({.phase = Phase::kSend, .unit = unit, .peer = 4});
  stamps.enter({.phase = Phase::kMeet, .label = "a label that is longer than what is kept of it"});
  const std::vector<RankStamps::Entry> entries = stamps.entries();
  ASSERT_EQ(entries.size(), RankStamps::kKept);
  EXPECT_EQ(to_text(entries[0].activity), "waits until rank 4 takes micro-batch 69");
  EXPECT_EQ(to_text(entries.back().activity), "waits for all ranks at \"a label that is longer t\"");
  EXPECT_EQ(stamps.progress(), 102u);
}

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(WatchdogTest, NamesTheRankOnceAndWritesTheStamps) {
  const TemporaryFolder folder;
  LocalBoard board(2);
  Watchdog first = board.watchdog(0, 0.5, folder / "stamps.txt"),
           second = board.watchdog(1, 0.5, folder / "stamps.txt");
  first.enter({.phase = Phase::kCompute, .unit = 7});
  const Wait wait(second, [] { return false; });
  const double start = steady_seconds();
  try {
    wait.until([] { return false; }, {.phase = Phase::kReceive, .unit = 7, .peer = 0});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kLost);
    EXPECT_NE(std::string(error.what())
                  .find("rank 0 computes micro-batch 7 and does not come out of it; rank 1 waits "
                        "for micro-batch 7 from rank 0"),
              std::string::npos)
        << error.what();
  }
  EXPECT_GE(steady_seconds() - start, 0.4);
  EXPECT_LT(steady_seconds() - start, 2);
  sleep(0.3);
  EXPECT_NE(board.said().find("stamps.txt"), std::string::npos) << board.said();
  EXPECT_NE(first.spoke(), second.spoke());
  EXPECT_FALSE(board.ended);
  std::ifstream file(folder / "stamps.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find("rank 0, process"), std::string::npos) << text;
  EXPECT_NE(text.find("computes micro-batch 7\n"), std::string::npos) << text;
  EXPECT_NE(text.find("waits for micro-batch 7 from rank 0\n"), std::string::npos) << text;
}

TEST(WatchdogTest, PulsesAndActivityAreProgress) {
  LocalBoard board(2);
  Watchdog first = board.watchdog(0, 0.5), second = board.watchdog(1, 0.5);
  second.enter({.phase = Phase::kReceive, .unit = 0, .peer = 0});
  for (uint64_t i = 0; i < 12; ++i) {
    first.note(i / 2);
    second.look();
    if (i > 6) first.pulse();
    sleep(0.1);
  }
  EXPECT_FALSE(board.claimed) << board.said();
  EXPECT_NO_THROW(second.check());
}

TEST(WatchdogTest, ACallInAWaitThatDoesNotReturn) {
  LocalBoard board(2);
  Watchdog first = board.watchdog(0, 0.5), second = board.watchdog(1, 0.5);
  second.enter({.phase = Phase::kCompute, .unit = 1});
  std::thread other([&] {  // polls, and waits for the rank that hangs
    const Wait wait(first, [] { return false; });
    EXPECT_THROW(wait.until([] { return false; }, {.phase = Phase::kSend, .unit = 1, .peer = 1}), Error);
  });
  bool begun = false;
  const Wait wait(second, [&] {
    if (begun) sleep(1.5);
    begun = true;
    return false;
  });
  EXPECT_THROW(wait.until([] { return false; }, {.phase = Phase::kReceive, .unit = 2, .peer = 0}), Error);
  other.join();
  EXPECT_NE(board.said().find("rank 1 waits for micro-batch 2 from rank 0 and does not come out of it"),
            std::string::npos)
      << board.said();
}

// A rank that never looks, because a call does not return: the watchdog itself ends the job.
TEST(WatchdogTest, EndsTheJobWhereTheRankDoesNot) {
  LocalBoard board(1);
  Watchdog watchdog = board.watchdog(0, 0.3);
  watchdog.enter({.phase = Phase::kCompute, .unit = 2});
  const double start = steady_seconds();
  while (!board.ended && steady_seconds() - start < 6) sleep(0.05);
  EXPECT_TRUE(board.ended);
  EXPECT_LT(steady_seconds() - start, 4);
  EXPECT_NE(board.said().find("rank 0 computes micro-batch 2 and does not come out of it"), std::string::npos);
}

// Two ranks hang at the end of the job, where no claim is shared: the first speaks, and the launcher has time to end
// the other.
TEST(WatchdogTest, AtTheEndOneRankSpeaksBeforeTheOthers) {
  LocalBoard first_board(2), second_board(2);
  Watchdog first = first_board.watchdog(0, 0.3), second = second_board.watchdog(1, 0.3);
  for (Watchdog* watchdog : {&first, &second}) watchdog->leave_board(watchdog->rank());
  const double start = steady_seconds();
  while (!first_board.ended && steady_seconds() - start < 6) sleep(0.05);
  EXPECT_TRUE(first_board.ended);
  EXPECT_NE(first_board.said().find("rank 0 ends and does not come out of it"), std::string::npos)
      << first_board.said();
  EXPECT_FALSE(second_board.claimed) << second_board.said();
  while (!second_board.claimed && steady_seconds() - start < 10) sleep(0.05);
  EXPECT_TRUE(second_board.claimed);
}

TEST(WatchdogTest, WithoutATimeoutNobodyStalls) {
  LocalBoard board(1);
  Watchdog watchdog = board.watchdog(0, 0);
  sleep(0.4);
  EXPECT_FALSE(board.claimed);
}

}  // namespace
}  // namespace lfm2::test
