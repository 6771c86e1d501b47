// The file of a machine's costs: what is written is read again, and what is impossible is refused in one line.
#include "stage/planning/machine_costs.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json/json.h"
#include "support/machine_costs.h"
#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {
namespace {

class MachineCostsTest : public testing::Test {
 protected:
  // Reads the file after `change` of its JSON.
  MachineCosts read(const std::function<void(Json&)>& change) const {
    Json json = parse_json(to_json(machine_, config_), "costs");
    change(json);
    write_bytes(path(), json.dump());
    return read_machine_costs(path(), config_);
  }
  void expect_refused(const std::string& text, const std::function<void(Json&)>& change) const {
    try {
      read(change);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData);
      EXPECT_NE(std::string(error.what()).find("m.json"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  std::filesystem::path path() const { return folder_ / "m.json"; }

  const ModelConfig config_ = small_model();
  const MachineCosts machine_ = made_up_costs(config_);
  TemporaryFolder folder_;
};

TEST_F(MachineCostsTest, WhatIsWrittenIsRead) {
  const MachineCosts found = read([](Json&) {});
  EXPECT_EQ(to_json(found, config_), to_json(machine_, config_));
  EXPECT_EQ(found.hosts.front().samples.front().blocks.front().seconds,
            machine_.hosts.front().samples.front().blocks.front().seconds);
}

TEST_F(MachineCostsTest, AnotherModel) {
  expect_refused("of another model: hidden_size is 999, the model has",
                 [](Json& json) { json["model"]["hidden_size"] = 999; });
  expect_refused("of another model: layer_types", [](Json& json) { json["model"]["layer_types"] = "ca"; });
  expect_refused("no \"num_experts\"", [](Json& json) { json["model"].erase("num_experts"); });
}

TEST_F(MachineCostsTest, AnotherFormOrVersion) {
  expect_refused("of version 2, expected 1", [](Json& json) { json["version"] = 2; });
  expect_refused("not a file of a machine's costs", [](Json& json) { json = Json::array(); });
  expect_refused("not a file of a machine's costs", [](Json& json) { json["form"] = "report"; });
  write_bytes(path(), "{\"form\": ");
  EXPECT_THROW(read_machine_costs(path(), config_), Error);
}

TEST_F(MachineCostsTest, ImpossibleNumbers) {
  const auto samples = [](Json& json) -> Json& { return json["costs"][0]["samples"][0]; };
  const auto first_times = [&](Json& json) -> Json& { return *samples(json)["seconds"].begin(); };
  expect_refused("expected a number from 0 to 10000", [&](Json& json) { first_times(json)[0] = -1; });
  expect_refused("expected a number from 0 to 10000", [&](Json& json) { first_times(json)[0] = 1e300; });
  expect_refused("expected a number from 0 to 10000", [&](Json& json) { first_times(json)[0] = nullptr; });
  expect_refused("one of each size", [&](Json& json) { first_times(json).erase(0); });
  expect_refused("expected ascending sizes", [&](Json& json) { samples(json)["tokens"][0] = 1000000; });
  expect_refused("\"length\" is 0", [&](Json& json) { samples(json)["length"] = 0; });
  expect_refused("\"length\" is -3", [&](Json& json) { samples(json)["length"] = -3; });
  expect_refused("\"costs\" is []", [](Json& json) { json["costs"] = Json::array(); });
  expect_refused("\"ranks\" of \"costs\" do not ascend", [](Json& json) { json["costs"].push_back(json["costs"][0]); });
  expect_refused("bytes_per_second", [](Json& json) { json["links"][0]["bytes_per_second"] = 0; });
  expect_refused("round_trip_seconds", [](Json& json) { json["links"][0]["round_trip_seconds"] = "fast"; });
  expect_refused("\"dtype\" is \"fp7\"", [](Json& json) { json["dtype"] = "fp7"; });
  expect_refused("\"cuda\" is 1, expected true or false", [](Json& json) { json["cuda"] = 1; });
}

// Whatever happens to the file, it is read or refused with 65.
TEST_F(MachineCostsTest, DamagedFiles) {
  const std::string whole = to_json(machine_, config_);
  for (size_t at = 0; at < whole.size(); at += 97) {
    std::string damaged = whole;
    switch (at % 3) {
      case 0:
        damaged.resize(at);
        break;
      case 1:
        damaged[at] = '-';
        break;
      default:
        damaged.insert(at, "9999999999");
    }
    write_bytes(path(), damaged);
    try {
      read_machine_costs(path(), config_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kData) << error.what();
    }
  }
}

TEST_F(MachineCostsTest, MissingFile) {
  try {
    read_machine_costs(folder_ / "none.json", config_);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoInput);
  }
}

TEST(CostCurveTest, LinesJoinTheSizesAndContinue) {
  const CostCurve curve{.sizes = {10, 20, 40}, .seconds = {1, 3, 4}};
  EXPECT_DOUBLE_EQ(curve.at(10), 1);
  EXPECT_DOUBLE_EQ(curve.at(15), 2);
  EXPECT_DOUBLE_EQ(curve.at(30), 3.5);
  EXPECT_DOUBLE_EQ(curve.at(60), 5);
  EXPECT_DOUBLE_EQ(curve.at(0), 0);  // the line would be below
  EXPECT_DOUBLE_EQ((CostCurve{.sizes = {10}, .seconds = {2}}).at(100), 2);
}

}  // namespace
}  // namespace lfm2::test
