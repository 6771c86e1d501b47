// The command line: what runs, and what is refused.
#include "stage/job/options.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/json/json.h"

namespace lfm2 {
namespace {

ParsedCommandLine parse_words(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "lfm2_stage");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

TEST(OptionsTest, DefaultsAreTheBuiltInJob) {
  const ParsedCommandLine parsed = parse_words({"--weights", "shards"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_EQ(parsed.options.samples, 1024);
  EXPECT_EQ(parsed.options.length, 32);
  EXPECT_FALSE(parsed.options.dtype);
  EXPECT_EQ(parsed.options.results.positions, Positions::kLast);
}

TEST(OptionsTest, AServerKeepsPrefixesUnlessToldOtherwise) {
  const ParsedCommandLine kept = parse_words({"serve", "--weights", "s"}),
                          computed = parse_words({"serve", "--weights", "s", "--no-prefix-cache"});
  ASSERT_TRUE(kept.run && computed.run) << kept.text << computed.text;
  EXPECT_TRUE(kept.options.serve.prefix_cache);
  EXPECT_FALSE(computed.options.serve.prefix_cache);
  EXPECT_FALSE(parse_words({"--weights", "s", "--no-prefix-cache"}).run);
}

TEST(OptionsTest, ValuesThatAShellLeftOut) {
  const auto refusal = [](std::vector<const char*> words) {
    words.insert(words.begin(), {"--weights", "s"});
    const ParsedCommandLine parsed = parse_words(words);
    EXPECT_EQ(parsed.exit_code, parsed.run ? 0 : 64);
    return parsed.run ? "taken" : parsed.text;
  };
  for (const char* option : {"--input", "--output", "--reference", "--report", "--trace", "--generation-config"}) {
    EXPECT_EQ(refusal({option, ""}),
              fmt::format("lfm2_stage: {}: \"\", expected the name of a file (see --help)\n", option));
    EXPECT_NE(refusal({fmt::format("{}=", option).c_str()}), "taken") << option;
  }
  EXPECT_EQ(refusal({"--tokenizer", ""}),
            "lfm2_stage: --tokenizer: \"\", expected the name of a folder (see --help)\n");
  EXPECT_EQ(refusal({"--report", "--score"}),
            "lfm2_stage: --report: \"--score\" is an option, expected the name of a file (or --report=--score, see "
            "--help)\n");
  EXPECT_NE(refusal({"--report", "-q"}), "taken");
  EXPECT_EQ(refusal({"--report=--score"}), "taken");
  EXPECT_EQ(refusal({"--report", "--scored"}), "taken") << "no option's name";
  EXPECT_EQ(refusal({"--prompt", ""}), "taken");
  EXPECT_EQ(refusal({"--samples", "10\r"}),
            "lfm2_stage: --samples: \"10\\x0d\", expected an integer from 1 to 2147483648 (see --help)\n");
}

TEST(OptionsTest, NumbersTooSmallForTheirTypeAreZero) {
  const ParsedCommandLine parsed = parse_words({"--weights", "s", "--max-tokens", "2", "--temperature", "1e-300"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_EQ(parsed.options.generation.sampling.temperature, 0.0f);
  EXPECT_TRUE(parse_words({"--weights", "s", "--max-tokens", "2", "--temperature", "1E-300"}).run);
  const std::string tiny = "0." + std::string(400, '0') + "1";
  EXPECT_TRUE(parse_words({"--weights", "s", "--max-tokens", "2", "--temperature", tiny.c_str()}).run);
  EXPECT_FALSE(parse_words({"--weights", "s", "--max-tokens", "2", "--temperature", "1e300"}).run);
}

TEST(OptionsTest, EverythingAtOnce) {
  const ParsedCommandLine parsed = parse_words(
      {"--weights", "s",           "--input",     "i.bin",         "--samples",   "7",        "--output", "o.h5",
       "--logits",  "all",         "--reference", "a.h5",          "--tolerance", "0.5",      "--fp16",   "--device",
       "cpu",       "--transport", "mpi",         "--micro-batch", "3",           "--layers", "7,6,6,5",  "--threads",
       "2",         "--timeout",   "9",           "--benchmark",   "--warmup",    "0",        "--repeat", "3",
       "--report",  "r.json",      "-q"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  const Options& options = parsed.options;
  EXPECT_EQ(options.samples, 7);
  EXPECT_EQ(options.dtype, DType::kF16);
  EXPECT_EQ(options.results.positions, Positions::kAll);
  EXPECT_EQ(options.device, DeviceChoice::kCpu);
  EXPECT_EQ(options.transport, TransportChoice::kMpi);
  EXPECT_EQ(options.layer_counts, (std::vector<double>{7, 6, 6, 5}));
  EXPECT_EQ(options.timeout_seconds, 9);
  EXPECT_EQ(options.warmup, 0);
  EXPECT_TRUE(options.quiet);
}

TEST(OptionsTest, HiddenStatesAreAKindOfResult) {
  for (const auto& [name, kind] : {std::pair{"last", Hidden::kLast}, {"mean", Hidden::kMean}, {"all", Hidden::kAll}}) {
    const ParsedCommandLine parsed = parse_words(
        {"--weights", "s", "--hidden", name, "--after-layer", "3", "--input", "i.jsonl", "--output", "o.h5"});
    ASSERT_TRUE(parsed.run) << parsed.text;
    const ResultKind& results = parsed.options.results;
    EXPECT_EQ(results.hidden, kind);
    EXPECT_EQ(results.after_layer, 3);
    EXPECT_EQ(results.positions, kind == Hidden::kAll ? Positions::kAll : Positions::kLast);
    EXPECT_EQ(results.of_last_positions(), kind == Hidden::kLast);
    EXPECT_EQ(positions_name(results), name);
    EXPECT_EQ(states_name(results), "after layer 3");
    EXPECT_EQ(continues_samples(parsed.options), false);
  }
}

TEST(OptionsTest, ScoringIsAKindOfResult) {
  const ParsedCommandLine parsed =
      parse_words({"--weights", "s", "--score", "--stride", "8", "--input", "i.jsonl", "--output", "o.jsonl"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_TRUE(parsed.options.results.score);
  EXPECT_EQ(parsed.options.results.positions, Positions::kAll);
  EXPECT_EQ(parsed.options.stride, 8);
  EXPECT_EQ(continues_samples(parsed.options), false);
}

TEST(OptionsTest, MistakesAreOneLineAndCode64) {
  const std::vector<std::vector<const char*>> mistakes = {
      {},
      {"--weights"},
      {"--weights", "s", "--no-such-option"},
      {"--weights", "s", "stray"},
      {"--weights", "s", "--dtype", "fp4"},
      {"--weights", "s", "--device", "tpu"},
      {"--weights", "s", "--logits", "some"},
      {"--weights", "s", "--samples", "0"},
      {"--weights", "s", "--samples", "many"},
      {"--weights", "s", "--length", "-3"},
      {"--weights", "s", "--micro-batch", "-1"},
      {"--weights", "s", "--tolerance", "-1"},
      {"--weights", "s", "--repeat", "3"},
      {"--weights", "s", "--output", "o.txt"},
      {"--weights", "s", "--output", "o.bin", "--logits", "all"},
      {"--weights", "s", "--output", "o.h5", "--logits", "none"},
      {"--weights", "s", "--logits", "none", "--top-logprobs", "3"},
      {"--weights", "s", "--top-logprobs", "0"},
      {"--weights", "s", "--reference", "a.bin", "--top-logprobs", "3"},
      {"--weights", "s", "--device", "cpu", "--transport", "nccl"},
      {"--weights", "s", "--device", "cpu", "--transport", "peer"},
      {"--weights", "s", "--score", "--logits", "last"},
      {"--weights", "s", "--score", "--top-logprobs", "2"},
      {"--weights", "s", "--score", "--max-tokens", "2"},
      {"--weights", "s", "--score", "--prompt", "a"},
      {"--weights", "s", "--score", "--output", "o.bin"},
      {"--weights", "s", "--score", "--reference", "a.bin"},
      {"--weights", "s", "--score", "--stride", "0"},
      {"--weights", "s", "--stride", "8"},
      {"--weights", "s", "--hidden", "first"},
      {"--weights", "s", "--hidden", "last", "--score"},
      {"--weights", "s", "--hidden", "last", "--logits", "last"},
      {"--weights", "s", "--hidden", "last", "--top-logprobs", "2"},
      {"--weights", "s", "--hidden", "last", "--max-tokens", "2"},
      {"--weights", "s", "--hidden", "last", "--prompt", "a"},
      {"--weights", "s", "--hidden", "last", "--temperature", "1"},
      {"--weights", "s", "--hidden", "last", "--reference", "a.h5"},
      {"--weights", "s", "--hidden", "last", "--output", "o.bin"},
      {"--weights", "s", "--hidden", "last", "--after-layer", "0"},
      {"--weights", "s", "--after-layer", "1"},
      {"--weights", "s", "--quiet", "--verbose"}};
  for (const auto& mistake : mistakes) {
    const ParsedCommandLine parsed = parse_words(mistake);
    SCOPED_TRACE(parsed.text);
    EXPECT_FALSE(parsed.run);
    EXPECT_EQ(parsed.exit_code, 64);
    EXPECT_EQ(parsed.text.find('\n'), parsed.text.size() - 1);
    EXPECT_EQ(parsed.text.find("lfm2_stage: "), 0u);
  }
}

// What stands in --help: a new option that takes a number is tested without being named here.
std::vector<std::string> options_with_values() {
  std::vector<std::string> names;
  std::istringstream help(parse_words({"--help"}).text);
  for (std::string line; std::getline(help, line);) {
    const size_t end = line.find(' ', 2);
    if (!line.starts_with("  --") || end == std::string::npos || line[end + 1] < 'A' || line[end + 1] > 'Z') continue;
    names.push_back(line.substr(2, end - 2));
  }
  return names;
}

ParsedCommandLine parse_value(const std::string& option, const std::string& value) {
  std::vector<const char*> arguments{"--weights", "s", option.c_str(), value.c_str(), "--benchmark"};
  if (option != "--max-tokens" && option != "--reference" && option != "--virtual-stages")
    arguments.insert(arguments.end(), {"--max-tokens", "1"});
  return parse_words(arguments);
}

// Takes a number and nothing else.
bool is_number(const std::string& option) { return parse_value(option, "1").run && !parse_value(option, "x").run; }

TEST(OptionsTest, NumbersAreDecimalAndInRange) {
  std::set<std::string> integers, fractions;
  for (const std::string& option : options_with_values()) {
    if (!is_number(option)) continue;
    SCOPED_TRACE(option);
    (parse_value(option, "0.5").run ? fractions : integers).insert(option);
    std::vector<std::string> refused{"",   " 1",   "1 ",  "+1",   "0x1", "0b1", "1x",   "1;1",      "1 1",  "1,",
                                     ",1", "1,,1", "nan", "-nan", "NaN", "inf", "-inf", "infinity", "1e400"};
    if (option != "--presence-penalty" && option != "--frequency-penalty") refused.push_back("-1");
    if (integers.contains(option)) {
      refused.insert(refused.end(), {"1e0", "1.0", "18446744073709551616", "18446744073709551617",
                                     "-18446744073709551615", "99999999999999999999"});
      EXPECT_TRUE(parse_value(option, "08").run) << parse_value(option, "08").text;
    }
    for (const std::string& value : refused) {
      const ParsedCommandLine parsed = parse_value(option, value);
      EXPECT_EQ(parsed.exit_code, 64) << '"' << value << '"';
      EXPECT_EQ(parsed.text.find("lfm2_stage: " + option + ": \"" + value + "\", expected "), 0u) << parsed.text;
      EXPECT_EQ(std::count(parsed.text.begin(), parsed.text.end(), '\n'), 1) << parsed.text;
    }
  }
  EXPECT_EQ(fractions,
            (std::set<std::string>{"--frequency-penalty", "--layers", "--min-p", "--presence-penalty",
                                   "--repetition-penalty", "--temperature", "--timeout", "--tolerance", "--top-p"}));
  for (const char* known : {"--samples", "--seed", "--eos", "--replicas", "--threads", "--repeat", "--virtual-stages"})
    EXPECT_TRUE(integers.contains(known)) << known;
}

TEST(OptionsTest, StopTexts) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(parse_words({"--weights", "s", "--max-tokens", "1", "--stop", "[a,b]", "--stop", "é"})
                .options.generation.sampling.stop,
            (Texts{"[a,b]", "é"}));
  for (const char* text : {"", "\xff", "a\xc3"})
    EXPECT_EQ(parse_words({"--weights", "s", "--max-tokens", "1", "--stop", text}).text,
              "lfm2_stage: --stop: no text in UTF-8, expected one of at least a character\n");
  EXPECT_EQ(parse_words({"--weights", "s", "--stop", "a"}).exit_code, 64);  // of a job that scores
}

TEST(OptionsTest, NamesAndPagesOfAServer) {
  const auto serve = [](std::vector<const char*> more) {
    more.insert(more.begin(), {"serve", "--weights", "s"});
    return parse_words(more);
  };
  const ParsedCommandLine parsed =
      serve({"--allowed-host", "lfm2", "--allowed-host", "llm_backend.local", "--cors-origin", "https://app.example",
             "--cors-origin", "http://[::1]:3000", "--cors-origin", "chrome-extension://abc", "--root-path", "/a/b-1"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_EQ(parsed.options.serve.allowed_hosts, (std::vector<std::string>{"lfm2", "llm_backend.local"}));
  EXPECT_EQ(parsed.options.serve.cors_origins.size(), 3u);
  const std::pair<const char*, std::vector<const char*>> refused[] = {
      {"--allowed-host", {"", "lfm2:8000", "http://lfm2", "lfm2.", "*", "a,b"}},
      {"--cors-origin",
       {"", "app.example", "://a", "http://", "http://a/", "http://a/b", "http://:80", "http://a:b", "http://a:80",
        "https://a:443", "http://a:70000", "http://u@a", "http://*.a", "http://[::1", "null"}},
      {"--root-path", {"", "/", "api", "/api/", "/a//b", "/a?b", "/a b", "/%61"}}};
  for (const auto& [option, values] : refused)
    for (const char* value : values) {
      const ParsedCommandLine one = serve({option, value});
      EXPECT_EQ(one.exit_code, 64) << option << ' ' << value;
      EXPECT_EQ(one.text.find(fmt::format("lfm2_stage: {}: \"{}\", expected ", option, value)), 0u) << one.text;
    }
  EXPECT_TRUE(serve({"--cors-origin", "*"}).run);
  EXPECT_EQ(serve({"--cors-origin", "*", "--cors-origin", "http://a"}).exit_code, 64);
}

TEST(OptionsTest, VirtualStagesAreForScoring) {
  EXPECT_EQ(parse_words({"--weights", "s"}).options.virtual_stages, 1);
  EXPECT_EQ(parse_words({"--weights", "s", "--virtual-stages", "3", "--score"}).options.virtual_stages, 3);
  const std::string refusal =
      "lfm2_stage: --virtual-stages 2 applies to scoring, not to generation: a step waits for the one before it, "
      "expected 1\n";
  using Words = std::vector<const char*>;
  for (const Words& job : {Words{"--weights", "s", "--max-tokens", "4"},
                           {"--weights", "s", "--prompt", "a"},
                           {"chat", "--weights", "s"},
                           {"serve", "--weights", "s"}}) {
    Words words = job;
    words.insert(words.end(), {"--virtual-stages", "2"});
    EXPECT_EQ(parse_words(words).text, refusal);
    EXPECT_EQ(parse_words(words).exit_code, 64);
  }
  EXPECT_EQ(parse_words({"--weights", "s", "--virtual-stages", "0", "--layers", "2,2"}).text,
            "lfm2_stage: --layers with --virtual-stages 0: the cut is given, expected the number of pieces for each "
            "rank\n");
  for (const char* command : {"chat", "serve"})
    EXPECT_EQ(parse_words({command, "--help"}).text.find("--virtual-stages"), std::string::npos);
}

TEST(OptionsTest, NumbersMeanWhatTheySay) {
  const ParsedCommandLine parsed = parse_words({"--weights", "s", "--samples", "010", "--length", "0032", "--seed",
                                                "18446744073709551615", "--layers", "010,07,08", "--max-tokens", "0100",
                                                "--eos", "011", "12,-0", "--timeout", "1e-2", "--top-p", ".5"});
  ASSERT_TRUE(parsed.run) << parsed.text;
  EXPECT_EQ(parsed.options.samples, 10);
  EXPECT_EQ(parsed.options.length, 32);
  EXPECT_EQ(parsed.options.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parsed.options.layer_counts, (std::vector<double>{10, 7, 8}));
  EXPECT_EQ(parsed.options.generation.sampling.max_new, 100);
  EXPECT_EQ(parsed.options.generation.sampling.eos_tokens, (std::vector<int32_t>{11, 12, 0}));
  EXPECT_EQ(parsed.options.timeout_seconds, 0.01);
  EXPECT_EQ(parsed.options.generation.sampling.top_p, 0.5f);
  EXPECT_EQ(parse_words({"--weights", "s", "--seed", "-1"}).text,
            "lfm2_stage: --seed: \"-1\", expected an integer from 0 to 18446744073709551615 (see --help)\n");
  EXPECT_EQ(parse_words({"--weights", "s", "--tolerance", "nan"}).text,
            "lfm2_stage: --tolerance: \"nan\", expected a number from 0 up (see --help)\n");
}

TEST(OptionsTest, EveryCommandHasHelp) {
  for (const std::vector<const char*>& words :
       {std::vector<const char*>{"--help"}, {"doctor", "--help"}, {"chat", "--help"}, {"serve", "--help"}}) {
    const ParsedCommandLine help = parse_words(words);
    EXPECT_FALSE(help.run);
    EXPECT_EQ(help.exit_code, 0) << help.text;
    EXPECT_NE(help.text.find("\n  -h, --help "), std::string::npos) << help.text;
  }
}

TEST(OptionsTest, HelpAndVersionGoToStdout) {
  const ParsedCommandLine help = parse_words({"--help"}), version = parse_words({"--version"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_FALSE(help.run);
  EXPECT_NE(help.text.find("--top-logprobs"), std::string::npos);
  const auto says = [&](const char* text) { return help.text.find(text) != std::string::npos; };
  EXPECT_TRUE(says("  --logits last|all|none ") && says("(default last)")) << help.text;
  EXPECT_TRUE(says("\nInput:\n  --weights DIR")) << help.text;
  EXPECT_FALSE(says(" in [") || says("2147483648")) << "ranges are for messages";
  size_t at = 0;  // of each group, in this order
  for (const char* group : {"Input", "Output", "Generation", "Layout", "Machine", "Diagnosis"}) {
    const size_t begin = help.text.find(fmt::format("\n{}:\n", group));
    EXPECT_TRUE(begin != std::string::npos && begin > at) << group << help.text;
    at = begin;
  }
  for (const char each : help.text) EXPECT_TRUE(each == '\n' || (each >= ' ' && each <= '~'));
  std::istringstream lines(help.text);
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(line.size() <= 100 || !line.starts_with(' ')) << line;
  EXPECT_EQ(version.text.find("lfm2_stage "), 0u);
}

}  // namespace
}  // namespace lfm2
