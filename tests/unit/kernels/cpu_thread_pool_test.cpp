// The thread pool of the CPU operators: every item runs once, exceptions arrive, and the pool can be used again.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "base/thread_pool.h"

namespace lfm2 {
namespace {

TEST(ThreadPoolTest, EveryItemRunsOnceWhateverTheCounts) {
  for (const auto& [threads, eager] : {std::pair(1, true), {2, true}, {2, false}, {3, false}, {5, true}}) {
    ThreadPool pool(threads, eager);
    EXPECT_EQ(pool.threads(), static_cast<size_t>(threads));
    for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
      std::vector<std::atomic<int>> runs(count);
      pool.parallel_for(count, [&](size_t item, size_t worker) {
        ASSERT_LT(worker, static_cast<size_t>(threads));
        ++runs[item];
      });
      for (const auto& times : runs) ASSERT_EQ(times, 1) << threads << " threads, " << count << " items";
    }
  }
}

TEST(ThreadPoolTest, RangesCoverEveryItemOnceAndHalveWhatIsLeft) {
  for (const int threads : {1, 2, 5})
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1000}})
      for (const size_t most : {size_t{1}, size_t{8}, size_t{2000}}) {
        ThreadPool pool(threads);
        std::vector<std::atomic<int>> runs(count);
        std::atomic<size_t> largest{0};
        pool.parallel_for_ranges(count, most, [&](size_t first, size_t end, size_t) {
          ASSERT_LT(first, end);
          ASSERT_LE(end, count);
          for (size_t item = first; item < end; ++item) ++runs[item];
          for (size_t seen = largest; seen < end - first && !largest.compare_exchange_weak(seen, end - first);) {
          }
        });
        for (const auto& times : runs) ASSERT_EQ(times, 1) << threads << " threads, " << count << " items";
        ASSERT_LE(largest, most);
        // Half of the first share; all of it where one thread takes all and nobody waits for it.
        const size_t share = (count + static_cast<size_t>(threads) - 1) / static_cast<size_t>(threads);
        ASSERT_LE(largest, threads == 1 ? share : (share + 1) / 2);
        if (count == 1000) {
          ASSERT_GE(largest, std::min(most, share / 2)) << threads << " threads, at most " << most;
        }
      }
}

TEST(ThreadPoolTest, ResultsAreVisibleAfterManyShortCalls) {
  for (const bool eager : {false, true}) {
    ThreadPool pool(3, eager);
    std::vector<size_t> sums(4);
    for (size_t round = 1; round <= 2000; ++round) {
      pool.parallel_for(sums.size(), [&](size_t item, size_t) { sums[item] += round; });
      for (const size_t sum : sums) ASSERT_EQ(sum, round * (round + 1) / 2);
    }
  }
}

TEST(ThreadPoolTest, ItemsRunAtTheSameTimeWithDifferentWorkers) {
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
  std::vector<size_t> workers(2);
  pool.parallel_for(2, [&](size_t item, size_t worker) {
    workers[item] = worker;
    ++inside;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (inside < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (inside == 2) met = true;
  });
  EXPECT_TRUE(met);
  EXPECT_NE(workers[0], workers[1]);
}

// Whoever is held up in an item, the others take the rest of its share.
TEST(ThreadPoolTest, SharesOfTheSlowAreTakenByOthers) {
  constexpr size_t kItems = 12;
  for (const size_t slow : {size_t{0}, kItems / 2, kItems - 1}) {
    ThreadPool pool(3);
    std::atomic<size_t> others{0};
    std::atomic<bool> all{false};
    pool.parallel_for(kItems, [&](size_t item, size_t) {
      if (item != slow) {
        ++others;
        return;
      }
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (others < kItems - 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      all = others == kItems - 1;
    });
    EXPECT_TRUE(all) << "item " << slow;
  }
}

TEST(ThreadPoolTest, TheNextItemIsTheNeighbourWithinAShare) {
  const ThreadPool pool(3);  // shares of 8 items: 0 and 1, 2 to 4, 5 to 7
  EXPECT_EQ(pool.next_item(0, 8, 0), 1u);
  EXPECT_EQ(pool.next_item(1, 8, 0), 1u);
  EXPECT_EQ(pool.next_item(3, 8, 1), 4u);
  EXPECT_EQ(pool.next_item(4, 8, 1), 4u);
  EXPECT_EQ(pool.next_item(7, 8, 0), 7u);  // taken from another's end
  EXPECT_EQ(pool.next_item(6, 8, 2), 7u);
}

// Sometimes the workers have fallen asleep when a task begins, and sometimes the caller has when the last worker
// leaves.
TEST(ThreadPoolTest, WhoeverSleepsIsWoken) {
  constexpr size_t kRounds = 400, kItems = 12;
  for (const bool eager : {false, true}) {
    ThreadPool pool(8, eager);
    std::vector<size_t> runs(kItems);
    for (size_t round = 1; round <= kRounds; ++round) {
      pool.parallel_for(kItems, [&](size_t item, size_t worker) {
        if (worker > 0 && item % 4 == round % 4) std::this_thread::sleep_for(std::chrono::microseconds(round % 7 * 90));
        ++runs[item];
      });
      for (const size_t times : runs) ASSERT_EQ(times, round);
      if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(round % 5 * 90));
    }
  }
}

TEST(ThreadPoolTest, AnExceptionReachesTheCallerAndThePoolGoesOn) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads, threads > 1);
    for (int round = 0; round < 50; ++round) {
      EXPECT_THROW(pool.parallel_for(100,
                                     [](size_t item, size_t) {
                                       if (item % 10 == 3) throw std::runtime_error("item");
                                     }),
                   std::runtime_error);
      std::atomic<int> runs{0};
      pool.parallel_for(100, [&](size_t, size_t) { ++runs; });
      ASSERT_EQ(runs, 100);
    }
  }
}

// A worker that has just woken for a task may find that the pool ends. Several pools side by side, each with more
// threads than there are processors, so that workers are late; without the order in worker_loop one of two such runs
// hung.
TEST(ThreadPoolTest, EndsWhileItsWorkersWake) {
  constexpr int kSideBySide = 6, kPools = 2000, kThreads = 5, kItems = 4;
  std::vector<std::thread> users;
  std::atomic<int64_t> runs{0};
  for (int user = 0; user < kSideBySide; ++user)
    users.emplace_back([&runs] {
      for (int number = 0; number < kPools; ++number) {
        ThreadPool pool(kThreads);
        for (int task = 0; task <= number % 4; ++task)
          pool.parallel_for(kItems, [&](size_t, size_t) {
            const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(number * 37 % 1000);
            while (std::chrono::steady_clock::now() < end) {
            }
            ++runs;
          });
      }
    });
  for (std::thread& user : users) user.join();
  EXPECT_EQ(runs, int64_t{kSideBySide} * kPools / 4 * (1 + 2 + 3 + 4) * kItems);
}

}  // namespace
}  // namespace lfm2
