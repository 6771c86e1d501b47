// The options of layout and machine, for all commands: which rank computes what, on which device, and how.
#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/options/choice.h"
#include "base/options/help_formatter.h"
#include "base/options/number_option.h"
#include "stage/job/options.h"

namespace lfm2 {

const char* transport_option(TransportChoice transport) {
  switch (transport) {
    case TransportChoice::kNccl:
      return "nccl";
    case TransportChoice::kPeer:
      return "peer";
    case TransportChoice::kMpi:
      return "mpi";
    case TransportChoice::kAuto:
      break;
  }
  return "auto";
}

void add_layout_options(CLI::App& app, Options& options) {
  const bool live = is_live(options.command);
  begin_group(app, help_group::kLayout);
  if (!live) add_setting(app, "--micro-batch", options.micro_batch, "Samples per micro-batch; 0: chosen", 0, kMaxCount);
  add_setting(
      app, "--virtual-stages", options.virtual_stages,
      "For scoring: pieces of layers of each rank; micro-batches go round the ranks V times, and the pipeline fills "
      "and drains V times faster; 0: chosen",
      0, kMaxCount)
      ->type_name("V")
      ->group(live ? "" : help_group::kLayout);  // accepted, then refused with its reason
  add_numbers(app, "--layers", options.layer_counts,
              "Layers of each stage, or of each virtual stage, as in 7,6,6,5 or, cut between token mixer and "
              "feed-forward, 6.5,6,6,5.5; default equal",
              0.5, static_cast<double>(kMaxCount));
  if (options.command != Command::kDoctor)  // doctor does not know the job
    app.add_flag("--balance", options.balance, "Layers cut so that the stages of this job take equally long")
        ->excludes("--layers");
  if (options.command != Command::kChat)
    add_setting(app, "--replicas", options.replicas,
                live ? "Pipelines side by side that share the requests; ranks = replicas x stages"
                     : "Pipelines side by side that share the samples; ranks = replicas x stages",
                1, 65536)
        ->type_name("R");
}

void add_machine_options(CLI::App& app, Options& options, std::string& dtype) {
  begin_group(app, help_group::kMachine);
  app.add_option("--dtype", dtype,
                 "Compute type: auto (the shards' own), fp32, bf16, fp16, or fp8 where shards hold it")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16", "fp8"}))
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_flag_callback(
         "--fp16", [&] { dtype = "fp16"; }, "Same as --dtype fp16")
      ->excludes("--dtype");
  app.add_option_function<std::string>(
         "--cache-dtype",
         [&options](const std::string& text) {
           options.cache_dtype = text == "fp8" ? std::optional(DType::kF8) : parse_dtype(text);
         },
         "Type of keys and values: auto (the compute type), bf16 where that is bf16, or fp8, which halves the KV cache "
         "and rounds keys and values in every job")
      ->check(CLI::IsMember({"auto", "bf16", "fp8"}))
      ->type_name("TYPE")
      ->default_str("auto");
  app.add_option(spellings("--fp32-math"), options.plain_fp32,
                 "How a GPU computes fp32 products: auto (tensor cores, exact bf16 products) or simt (plain fp32)")
      ->transform(one_of<bool>({{"auto", false}, {"simt", true}}))
      ->type_name("WAY")
      ->default_str("auto");
  app.add_option("--device", options.device, "auto (CUDA where every rank finds a GPU), cuda or cpu")
      ->transform(one_of<DeviceChoice>(
          {{"auto", DeviceChoice::kAuto}, {"cuda", DeviceChoice::kCuda}, {"cpu", DeviceChoice::kCpu}}))
      ->type_name("DEVICE")
      ->default_str("auto");
  std::vector<std::pair<std::string, TransportChoice>> transports;
  for (const TransportChoice transport :
       {TransportChoice::kAuto, TransportChoice::kNccl, TransportChoice::kPeer, TransportChoice::kMpi})
    transports.emplace_back(transport_option(transport), transport);
  app.add_option(
         "--transport", options.transport,
         "auto (NCCL where each rank has a GPU of its own), nccl, peer (copies between the GPUs of a host) or mpi")
      ->transform(one_of(transports))
      ->type_name("TRANSPORT")
      ->default_str("auto");
  add_setting(app, "--threads", options.threads,
              "Threads per rank on the CPU; 0: the processors, divided by the ranks that compute at a time", 0, 4096);
  app.add_option("--simd", options.simd,
                 "Instructions on the CPU: auto (the best there are), amx, avx512bf16, avx512, avx2 or portable; the "
                 "same for all ranks gives the same bits on unequal processors (amx, and avx512bf16 in bf16, have bits "
                 "of their own)")
      ->check(CLI::IsMember({"auto", "amx", "avx512bf16", "avx512", "avx2", "portable"}))
      ->type_name("NAME")
      ->capture_default_str();
  add_setting(app, "--timeout", options.timeout_seconds,
              "Seconds without progress of a rank that end the run (ten times that while it reads, loads or writes); "
              "0: never",
              0.0, 1e9);
}

}  // namespace lfm2
