// The thread that syncs a file: only after a change, and with its error handed to the thread that writes.
#include "stage/io/background_sync.h"

#include <gtest/gtest.h>

#include <atomic>

#include "base/error.h"

namespace lfm2::test {
namespace {

using namespace std::chrono_literals;

template <class F>
void wait_for(F&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(1ms);
  }
}

TEST(BackgroundSyncTest, SyncsAfterAChangeAlone) {
  std::atomic<int> syncs = 0;
  BackgroundSync sync([&] { ++syncs; }, 1ms);
  sync.start();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(syncs, 0);
  for (int change = 1; change <= 3; ++change) {
    sync.note_change();
    wait_for([&] { return syncs == change; });
  }
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(syncs, 3);
  sync.finish();
}

TEST(BackgroundSyncTest, NothingIsSyncedBeforeTheStartOrAfterTheEnd) {
  std::atomic<int> syncs = 0;
  BackgroundSync sync([&] { ++syncs; }, 1ms);
  sync.note_change();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(syncs, 0);
  sync.start();
  wait_for([&] { return syncs == 1; });
  sync.stop();
  sync.note_change();
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(syncs, 1);
}

TEST(BackgroundSyncTest, AnErrorReachesTheWriterAndTheEnd) {
  std::atomic<bool> failed = false;
  BackgroundSync sync(
      [&] {
        failed = true;
        throw Error(ExitCode::kIo, "no disk");
      },
      1ms);
  sync.start();
  sync.note_change();
  wait_for([&] { return failed.load(); });
  wait_for([&] {
    try {
      sync.note_change();
      return false;
    } catch (const Error&) {
      return true;
    }
  });
  EXPECT_THROW(sync.finish(), Error);
}

}  // namespace
}  // namespace lfm2::test
