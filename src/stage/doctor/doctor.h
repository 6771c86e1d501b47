// The command `lfm2_stage doctor`: gathers facts of all ranks, tries devices and links, and prints findings. Owned by
// main, which ends all ranks if the doctor throws.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "comm/mpi_world.h"
#include "stage/doctor/doctor_findings.h"
#include "stage/doctor/link_speed.h"
#include "stage/job/backend_choice.h"
#include "stage/job/options.h"

namespace lfm2 {

class Doctor {
 public:
  Doctor(const Options& options, MpiWorld& world) : options_(options), world_(world), talk_(world, 0) {}

  // Prints the tables on rank 0. Error(kUnavailable) if a finding would stop a run.
  ExitCode run();

 private:
  // The hidden states of one transfer in the link measurement: `tokens` rows of row_bytes.
  struct TransferSize {
    int64_t tokens = 0, row_bytes = 0;
  };
  static TransferSize choose_transfer_size(const RankFacts& first);
  TrialFacts try_machine(TransferSize size);
  void try_links(TransferSize size, TrialFacts& facts);
  void save(const Examination& examination);

  const Options& options_;
  MpiWorld& world_;
  // A separate communicator, so that its messages cannot mix with those of a trial that failed half-way.
  MpiGroup talk_;
  // Kept until the process ends, because a trial that failed may still be using them.
  std::optional<MpiGroup> pipeline_;
  Machine machine_;
  std::unique_ptr<Channel> channel_;
  std::optional<LinkMeasurement> link_measurement_;
};

// The seconds within which the command must end, a deadline for calls that have none; 0: no limit.
double max_doctor_seconds(const Options& options);

std::string facts_table(const Examination& examination);
std::string trials_table(const Examination& examination, const std::vector<Finding>& findings);

}  // namespace lfm2
