// lfm2_stage doctor: what the ranks find, what they can do together, what looks wrong. main owns it and ends all ranks
// where it throws.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/mpi_world.h"
#include "stage/doctor/doctor_findings.h"
#include "stage/doctor/link_test.h"
#include "stage/job/backend_choice.h"
#include "stage/job/options.h"

namespace lfm2 {

class Doctor {
 public:
  Doctor(const Options& options, MpiWorld& world) : options_(options), world_(world), talk_(world, 0) {}

  // Prints a table on rank 0. Error(kUnavailable) where something would stop a run.
  ExitCode run();

 private:
  struct Item {  // of the link test
    int64_t tokens = 0, row_bytes = 0;
  };
  static Item choose_item(const RankFacts& first);
  TrialFacts try_machine(Item item);
  void try_links(Item item, TrialFacts& facts);

  const Options& options_;
  MpiWorld& world_;
  MpiGroup talk_;  // what is said here cannot mix with a trial that failed half-way
  // Kept until the process ends, because a trial that failed may still be using them.
  std::optional<MpiGroup> pipeline_;
  Machine machine_;
  std::unique_ptr<Channel> channel_;
  std::optional<LinkTest> link_test_;
};

// After which something hangs that has no deadline of its own; 0: never.
double longest_doctor_seconds(const Options& options);

std::string facts_table(const Examination& examination);
std::string trials_table(const Examination& examination, const std::vector<Finding>& findings);

}  // namespace lfm2
