// What doctor concludes from facts that no test machine has, and where the facts come from.
#include "stage/doctor/doctor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "base/control_groups.h"
#include "base/host_memory.h"
#include "comm/launch.h"
#include "stage/job/backend_choice.h"
#include "support/shards.h"

namespace lfm2 {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

// A place for the output of the last rank, with nothing wrong.
OutputPlace& writer_of(Examination& e) {
  e.options.output = "o.h5";
  e.ranks.back().writes_output = true;
  return e.ranks.back().output = {.has_locks = true,
                                  .free_bytes = 64 * kGiB,
                                  .files = 1000,
                                  .free_files = 900,
                                  .largest_file_bytes = std::numeric_limits<uint64_t>::max()};
}

// Facts of two hosts with two ranks each, with nothing wrong.
Examination healthy(bool gpus) {
  Examination e;
  for (int rank = 0; rank < 4; ++rank) {
    RankFacts facts;
    facts.rank = rank;
    facts.host = rank < 2 ? "a" : "b";
    facts.ranks_on_host = 2;
    facts.launched = 4;
    facts.processors = "0-15";
    facts.usable_processors = facts.all_processors = 16;
    facts.share = 8;
    facts.versions = {{"lfm2_stage", "lfm2_stage 1"}, {"MPI", "Open MPI v4"}, {"HDF5", "1.10"}};
    facts.free_memory_bytes = 64 * kGiB;
    facts.shm_bytes = facts.free_shm_bytes = kGiB;
    facts.lockable_bytes = facts.open_files = facts.address_bytes = std::numeric_limits<uint64_t>::max();
    facts.split_id = "split";
    facts.model_layers = 24;
    facts.layers = fmt::format("{}-{}", rank * 6, rank * 6 + 5);
    facts.tokens = 512;
    facts.row_bytes = 4096;
    facts.dtype = "bf16";
    facts.weight_bytes = 4 * kGiB;
    facts.activation_bytes = kGiB / 2;
    if (gpus) {
      facts.visible_gpus = 2;
      facts.versions["NCCL"] = "2.28";
      facts.gpu = "GPU " + std::to_string(rank % 2);
      facts.gpu_uuid = "uuid" + std::to_string(rank);
      facts.free_gpu_bytes = facts.all_gpu_bytes = 80 * kGiB;
      facts.peers = {{"uuid" + std::to_string(rank ^ 1), kNvlink}};
    }
    e.ranks.push_back(facts);
    e.trials.push_back({.device = gpus ? "CUDA, GPU 0, H200" : "CPU, 8 threads, avx512",
                        .transport = gpus ? "NCCL" : "MPI",
                        .problem = "",
                        .bytes_per_second = rank < 3 ? 10e9 : 0,
                        .round_trip_seconds = 1e-5});
  }
  return e;
}

struct Case {
  bool gpus, stops;
  std::string what, todo;
  std::function<void(Examination&)> damage;
};

TEST(DoctorFindingsTest, NothingWrong) {
  for (const bool gpus : {false, true}) {
    const std::vector<Finding> found = diagnose(healthy(gpus));
    EXPECT_TRUE(found.empty()) << found.front().what;
    EXPECT_NE(trials_table(healthy(gpus), found).find("nothing looks wrong"), std::string::npos);
  }
}

TEST(DoctorFindingsTest, PeerCopiesNeedNoSightOfTheNextGpuButOneForEachRank) {
  Examination e = healthy(true);
  e.ranks[2].peers.clear();
  e.options.transport = TransportChoice::kPeer;
  EXPECT_TRUE(diagnose(e).empty());
  e.ranks[1].gpu_uuid = e.ranks[0].gpu_uuid;
  const std::vector<Finding> found = diagnose(e);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].stops);
  EXPECT_EQ(found[0].what, "ranks 0-1 share GPU 0 on a: peer copies wait for its turns");
}

void expect_named(const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    Examination e = healthy(each.gpus);
    each.damage(e);
    const std::vector<Finding> found = diagnose(e);
    ASSERT_EQ(found.size(), 1u) << found.back().what;
    EXPECT_NE(found[0].what.find(each.what), std::string::npos) << found[0].what;
    EXPECT_NE(found[0].todo.find(each.todo), std::string::npos) << found[0].todo;
    EXPECT_EQ(found[0].stops, each.stops);
    EXPECT_FALSE(facts_table(e).empty());
    EXPECT_NE(trials_table(e, found).find(each.what), std::string::npos);
  }
}

TEST(DoctorFindingsTest, EachFaultIsNamedOnceWithWhatToDo) {
  const auto on_host_b = [](Examination& e, const std::function<void(RankFacts&)>& change) {
    change(e.ranks[2]);
    change(e.ranks[3]);
  };
  const std::vector<Case> cases = {
      {false, true, "started 8 ranks, MPI (Open MPI v4) knows of 4", "--mpi=pmix",
       [](Examination& e) { e.ranks[0].launched = 8; }},
      {false, true, "4 ranks for --replicas 3", "", [](Examination& e) { e.options.replicas = 3; }},
      {false, true, "4 ranks for the 3 layers", "", [](Examination& e) { e.ranks[0].model_layers = 3; }},
      {false, true, "ranks 1,3: no such folder", "",
       [](Examination& e) { e.ranks[1].problems = e.ranks[3].problems = {"no such folder"}; }},
      {false, true, "rank 0: no such file", "",
       [](Examination& e) {
         e.ranks[0].problems = {"no such file"};
         e.ranks[0].split_id = "";
       }},
      {true, true, "rank 2: NCCL failed", "NCCL_DEBUG",
       [](Examination& e) { e.trials[2] = {.device = "", .transport = "", .problem = "NCCL failed"}; }},
      {false, true, "other on b; split on a", "same folder",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.split_id = "other"; }); }},
      {false, true, "lfm2_stage: lfm2_stage 1 on a; lfm2_stage 2 on b", "the same",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.versions["lfm2_stage"] = "lfm2_stage 2"; }); }},
      {false, false, "HDF5: 1.10 on a; 1.14 on b", "the same",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.versions["HDF5"] = "1.14"; }); }},
      {true, true, "NCCL: none on b; 2.28 on a", "the same",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.versions.erase("NCCL"); }); }},
      {false, true, "ranks 2-3 on b: 9.66 GB of memory needed, 8.59 GB free", "--micro-batch",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.free_memory_bytes = 8 * kGiB; }); }},
      {false, false, "ranks 2-3 on b: 9.66 GB of memory needed, 10.20 GB", "--micro-batch",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.free_memory_bytes = kGiB / 2 * 19; }); }},
      {true, true, "rank 1 on a, GPU 1: 5.91 GB of memory needed, 2.15 GB free", "nvidia-smi",
       [](Examination& e) { e.ranks[1].free_gpu_bytes = 2 * kGiB; }},
      {false, false, "ranks 0-1 on a may use 2 of 16", "--bind-to none",
       [](Examination& e) { e.ranks[0].share = e.ranks[1].share = 1; }},
      {false, false, "2 ranks take turns on the 1 processors of b", "fewer ranks",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.all_processors = rank.share = 1; }); }},
      {true, false, "no GPU for rank 3", "--gres",
       [](Examination& e) {
         e.ranks[3].visible_gpus = 0;
         e.ranks[3].gpu_uuid = "";
       }},
      {true, false, "ranks 0-1 share GPU 0 on a: NCCL cannot join them, hidden states go over MPI",
       "a GPU for each rank", [](Examination& e) { e.ranks[1].gpu_uuid = e.ranks[0].gpu_uuid; }},
      {true, false, "rank 2 cannot see the GPU of the next", "--gpu-bind",
       [](Examination& e) { e.ranks[2].peers.clear(); }},
      {true, false, "rank 0 cannot reach the next rank's GPU", "topo",
       [](Examination& e) { e.ranks[0].peers["uuid1"] = kThroughHost; }},
      {true, false, "/dev/shm on b: 67.11 MB free, 2 ranks may want 134.22 MB", "--shm-size",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.free_shm_bytes = kGiB / 16; }); }},
      {false, false, "locked memory on b: 65.54 kB", "ulimit -l",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.lockable_bytes = 1 << 16; }); }},
      {false, false, "open files on b: at most 64", "ulimit -n",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.open_files = 64; }); }},
      {false, false, "addresses on b: at most 4.29 GB a process", "ulimit -v",
       [&](Examination& e) { on_host_b(e, [](RankFacts& rank) { rank.address_bytes = 4 * kGiB; }); }},
      {false, false, "rank 1 to 2: 0.10 GB/s between hosts", "NCCL_SOCKET_IFNAME",
       [](Examination& e) { e.trials[1].bytes_per_second = 1e8; }},
      {false, false, "rank 0 to 1: 4.0 ms there and back", "top",
       [](Examination& e) { e.trials[0].round_trip_seconds = 4e-3; }},
      {false, false, "rank 2 to 3: 3.00 GB/s, others of this kind 10.00", "load",
       [](Examination& e) { e.trials[2].bytes_per_second = 3e9; }},
      {false, false, "avx2 on b", "--simd avx2",
       [](Examination& e) { e.trials[2].device = e.trials[3].device = "CPU, 8 threads, avx2"; }},
      {false, false, "3 of the pipeline's links go from host to host, 1 would do", "--map-by slot",
       [](Examination& e) { std::swap(e.ranks[1].host, e.ranks[2].host); }},
  };
  expect_named(cases);
}

TEST(DoctorFindingsTest, EachFaultOfThePlaceOfTheOutputIsNamed) {
  expect_named({
      {false, false, "no locks, so two runs", "-o flock", [](Examination& e) { writer_of(e).has_locks = false; }},
      {false, false, "o.h5 on b: 268.44 MB free", "74", [](Examination& e) { writer_of(e).free_bytes = kGiB / 4; }},
      {false, true, "o.h5 on b: 0 B free", "74", [](Examination& e) { writer_of(e).free_bytes = 0; }},
      {false, true, "o.h5 on b: 2 files may be made, a run makes up to 3", "inodes",
       [](Examination& e) { writer_of(e).free_files = 2; }},
      {false, false, "o.h5 on b: a file may have at most 1.07 GB", "ulimit -f",
       [](Examination& e) { writer_of(e).largest_file_bytes = kGiB; }},
  });
}

TEST(DoctorFindingsTest, WhatAllowsFewerProcessorsIsNamed) {
  Examination e = healthy(false);
  e.ranks[0].share = e.ranks[1].share = 1;
  e.ranks[0].processor_limits = e.ranks[1].processor_limits = {"a CPU quota of 2", "OMP_NUM_THREADS=1"};
  const std::vector<Finding> found = diagnose(e);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, "ranks 0-1 on a may use 2 of 16 processors: a CPU quota of 2, OMP_NUM_THREADS=1");
  EXPECT_NE(found[0].todo.find("--cpus"), std::string::npos) << found[0].todo;
  EXPECT_FALSE(found[0].stops);
}

TEST(DoctorFindingsTest, RanksThatShareAGpuAndAreStagedHearOfACudaAwareMpi) {
  Examination e = healthy(true);
  e.ranks[1].gpu_uuid = e.ranks[0].gpu_uuid;
  EXPECT_EQ(diagnose(e).at(0).todo.find("openmpi-cuda.sh"), std::string::npos);
  e.ranks[0].mpi_staging_reason = "Open MPI v4 was built without CUDA";
  const Finding found = diagnose(e).at(0);
  EXPECT_NE(found.what.find("go over MPI and through the host (Open MPI v4 was built"), std::string::npos)
      << found.what;
  EXPECT_NE(found.todo.find("openmpi-cuda.sh"), std::string::npos) << found.todo;
}

TEST(DoctorTablesTest, TheWayOfGpuMemoryOverMpi) {
  Examination e = healthy(true);
  EXPECT_NE(facts_table(e).find("Open MPI v4 (CUDA-aware)"), std::string::npos) << facts_table(e);
  e.ranks[0].mpi_staging_reason = "Open MPI v4 was built without CUDA";
  EXPECT_NE(facts_table(e).find("Open MPI v4 (not CUDA-aware)"), std::string::npos) << facts_table(e);
  e.trials[0].transport = mpi_transport_name("");
  e.trials[1].transport = mpi_transport_name(e.ranks[0].mpi_staging_reason);
  const std::string table = trials_table(e, {});
  EXPECT_NE(table.find("  MPI, device buffers\n"), std::string::npos) << table;
  EXPECT_NE(table.find("  MPI, staged: Open MPI v4 was built without CUDA\n"), std::string::npos) << table;
}

TEST(DoctorFindingsTest, WhatStopsARunComesFirst) {
  Examination e = healthy(false);
  e.ranks[0].open_files = 8;
  e.ranks[0].launched = 5;
  const std::vector<Finding> found = diagnose(e);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_TRUE(found[0].stops);
  EXPECT_FALSE(found[1].stops);
}

TEST(DoctorFactsTest, SurviveTheirJson) {
  const Examination e = healthy(true);
  const RankFacts back = rank_facts_from_json(to_json(e.ranks[1]));
  EXPECT_EQ(to_json(back), to_json(e.ranks[1]));
  EXPECT_EQ(back.peers, e.ranks[1].peers);
  EXPECT_EQ(back.lockable_bytes, e.ranks[1].lockable_bytes);
}

TEST(DoctorFactsTest, ProcessorList) {
  EXPECT_EQ(processor_list({}), "");
  EXPECT_EQ(processor_list({3}), "3");
  EXPECT_EQ(processor_list({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

TEST(HostMemoryTest, TightestControlGroupCounts) {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories((folder.path() / path).parent_path());
    std::ofstream(folder.path() / path) << text;
  };
  const auto headroom = [&](const std::string& membership) {
    write("membership", membership);
    return control_group_headroom(folder / "membership", folder / "fs");
  };
  EXPECT_EQ(headroom("0::/job/step\n"), std::nullopt);
  write("fs/job/memory.max", "5000\n");
  write("fs/job/memory.current", "3000\n");
  write("fs/job/memory.stat", "anon 1\ninactive_file 500\nactive_file 7\n");
  write("fs/job/step/memory.max", "max\n");
  EXPECT_EQ(headroom("0::/job/step\n"), 2500u);
  write("fs/job/step/memory.max", "4000\n");  // nothing says how much of it is used
  EXPECT_EQ(headroom("0::/job/step\n"), 2500u);
  write("fs/job/step/memory.current", "3900\n");
  EXPECT_EQ(headroom("0::/job/step\n"), 100u);
  EXPECT_EQ(headroom("0::/elsewhere\n"), std::nullopt);
  write("fs/memory.max", "9000\n");  // as a container sees its own group
  EXPECT_EQ(headroom("0::/elsewhere\n"), 9000u);
  write("fs/memory/slurm/memory.limit_in_bytes", "800\n");
  write("fs/memory/slurm/memory.usage_in_bytes", "900\n");
  write("fs/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(headroom("3:cpu,cpuacct:/slurm\n4:memory:/slurm\n"), 0u);
  write("fs/memory/slurm/memory.stat", "total_inactive_file 300\n");
  EXPECT_EQ(headroom("4:memory:/slurm\n"), 200u);
  EXPECT_GT(available_host_memory(), 0u);
}

TEST(ProcessorLimitsTest, TheTightestOfMaskQuotaAndRequestCounts) {
  EXPECT_EQ((ProcessorLimits{.usable = 16, .asked_by = ""}.share(4, 4)), 4);
  EXPECT_EQ((ProcessorLimits{.usable = 2, .asked_by = ""}.share(4, 4)), 1);
  EXPECT_EQ((ProcessorLimits{.usable = 16, .quota = 8.5, .asked_by = ""}.share(4, 4)), 2);
  EXPECT_EQ((ProcessorLimits{.usable = 16, .quota = 0.5, .asked_by = ""}.share(1, 1)), 1);
  EXPECT_EQ((ProcessorLimits{.usable = 16, .quota = 100, .asked_by = ""}.share(1, 1)), 16);
  // Ranks that are bound to processors of their own share the quota all the same.
  EXPECT_EQ((ProcessorLimits{.usable = 8, .quota = 8, .asked_by = ""}.share(1, 4)), 2);
  EXPECT_EQ((ProcessorLimits{.usable = 16, .asked = 3, .asked_by = "OMP_NUM_THREADS=3"}.share(2, 2)), 3);
  EXPECT_EQ((ProcessorLimits{.usable = 16, .asked = 30, .asked_by = "OMP_NUM_THREADS=30"}.share(2, 2)), 8);
}

TEST(ProcessorLimitsTest, WhatMakesTheShareSmallerIsNamed) {
  using Reasons = std::vector<std::string>;
  const ProcessorLimits limits{.usable = 16, .quota = 6, .asked = 1, .asked_by = "SLURM_CPUS_PER_TASK=1"};
  EXPECT_EQ(limits.reasons(2, 2), (Reasons{"a CPU quota of 6", "SLURM_CPUS_PER_TASK=1"}));
  EXPECT_EQ((ProcessorLimits{.usable = 1, .quota = 0.5, .asked_by = ""}.reasons(1, 1)), Reasons{"a CPU quota of 0.5"});
  EXPECT_EQ((ProcessorLimits{.usable = 16, .quota = 16, .asked = 8, .asked_by = "OMP_NUM_THREADS=8"}.reasons(2, 2)),
            Reasons{});
}

TEST(ProcessorQuotaTest, TightestControlGroupCounts) {
  const test::TemporaryFolder folder;
  const auto write = [&](const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories((folder.path() / path).parent_path());
    std::ofstream(folder.path() / path) << text;
  };
  const auto quota = [&](const std::string& membership) {
    write("membership", membership);
    return processor_quota(folder / "membership", folder / "fs");
  };
  EXPECT_EQ(quota("0::/pod/container\n"), std::nullopt);
  write("fs/pod/cpu.max", "150000 100000\n");
  write("fs/pod/container/cpu.max", "max 100000\n");
  EXPECT_EQ(quota("0::/pod/container\n"), 1.5);
  write("fs/pod/container/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota("0::/pod/container\n"), 0.5);
  write("fs/cpu,cpuacct/job/cpu.cfs_quota_us", "400000\n");
  write("fs/cpu,cpuacct/job/cpu.cfs_period_us", "200000\n");
  EXPECT_EQ(quota("4:memory:/other\n3:cpu,cpuacct:/job\n"), 2);
  write("fs/cpu/job/cpu.cfs_quota_us", "-1\n");
  write("fs/cpu/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota("3:cpu,cpuacct:/job\n"), std::nullopt);
  EXPECT_EQ(quota("3:cpuset:/pod\n"), std::nullopt);
}

TEST(LaunchTest, RanksThatMpiDoesNotKnowOf) {
  EXPECT_FALSE(ranks_that_run_alone(1, 1, "Open MPI"));
  EXPECT_FALSE(ranks_that_run_alone(4, 4, "Open MPI"));
  EXPECT_TRUE(ranks_that_run_alone(4, 1, "Open MPI"));
}

}  // namespace
}  // namespace lfm2
