// Reads the keys that Lfm3Config alone has, or reads in its own way.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "stage/model/configs/config_reader.h"

namespace lfm2 {

namespace {

constexpr std::string_view kDefaultRope = R"({
  "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
  "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5}})";
constexpr double kDefaultTheta = 1000000.0;  // of an object without rope_theta

// The object of one kind of attention.
class RopeReader {
 public:
  RopeReader(const ConfigReader& reader, const Json& object, std::string name, int64_t head_dim)
      : reader_(reader), object_(object), name_(std::move(name)), head_dim_(head_dim) {
    if (!object.is_object()) reader.fail(fmt::format("\"{}\" is {}, expected an object", name_, json_excerpt(object)));
  }

  // `note`: receives the line for a reading that the file does not spell out.
  Rope read(std::string& note) const {
    const std::string type = rope_type();
    for (const auto& [key, value] : object_.items()) expect_known(type, key, value);
    const double share = number("partial_rotary_factor", 1.0);
    if (share > 1) reader_.fail(fmt::format("\"{}.partial_rotary_factor\" is {}, expected at most 1", name_, share));
    const auto pairs = static_cast<int64_t>(std::floor(share * static_cast<double>(head_dim_) / 2));
    if (pairs == 0)
      reader_.fail(fmt::format("\"{}.partial_rotary_factor\" is {}, which turns nothing of {} elements, expected more",
                               name_, share, head_dim_));
    // The published file says default, and its weights are proportional: docs/adding-a-model.md.
    if (type == "default" && share < 1)
      note = fmt::format(
          "{} has rope_type default and partial_rotary_factor {}: computed as proportional, not as "
          "default, which turns whole heads",
          name_, share);
    const double theta = reader_.real("rope_theta", kDefaultTheta);
    return {.theta = static_cast<float>(number("rope_theta", theta)),
            .pairs = 2 * pairs == head_dim_ ? 0 : pairs,
            .factor = static_cast<float>(number("factor", 1.0))};
  }

 private:
  std::string rope_type() const {
    for (const std::string_view key : {"rope_type", "type"}) {
      const auto type = object_.find(key);
      if (type == object_.end()) continue;
      if (*type != "default" && *type != "proportional")
        reader_.fail(
            fmt::format("\"{}.{}\" is {}, expected \"default\" or \"proportional\"", name_, key, json_excerpt(*type)));
      return type->get<std::string>();
    }
    return "default";
  }
  void expect_known(const std::string& type, const std::string& key, const Json& value) const {
    constexpr std::string_view kKnown[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor"};
    const bool scales = key == "factor" && (type == "proportional" || value == 1);
    if (std::ranges::find(kKnown, key) == std::end(kKnown) && !scales)
      reader_.fail(fmt::format("\"{}.{}\" is {}, expected no such key: rope_type {} is computed without it", name_, key,
                               json_excerpt(value), type));
  }
  double number(std::string_view key, double otherwise) const {
    const auto value = object_.find(key);
    return value == object_.end() ? otherwise : reader_.real(*value, fmt::format("{}.{}", name_, key));
  }

  const ConfigReader& reader_;
  const Json& object_;
  std::string name_;
  int64_t head_dim_;
};

// rope_scaling, the older name, replaces rope_parameters if it is not empty.
void read_ropes(const ConfigReader& reader, ModelConfig& config) {
  const Json otherwise = parse_json(kDefaultRope, "the default of rope_parameters");
  std::string_view key = "rope_scaling";
  const Json* object = reader.find_unless_null(key);
  if (object == nullptr || object->empty()) object = reader.find_unless_null(key = "rope_parameters");
  if (object == nullptr) object = &otherwise;
  const auto name_of = [&](std::string_view kind) { return fmt::format("{}.{}", key, kind); };
  if (!object->is_object())
    reader.fail(fmt::format("\"{}\" is {}, expected an object for each kind of attention", key, json_excerpt(*object)));
  for (const auto& [kind, value] : object->items())
    if (kind != "full_attention" && kind != "sliding_attention")
      reader.fail(fmt::format("\"{}\" is {}, expected no such key: lfm3 has an object for each kind of attention",
                              name_of(kind), json_excerpt(value)));
  const auto read = [&](LayerType type, std::string_view kind, Rope& rope) {
    if (std::ranges::find(config.layer_types, type) == config.layer_types.end()) return;
    const auto found = object->find(kind);
    if (found == object->end()) reader.fail(fmt::format("\"{}\" is missing, expected an object", name_of(kind)));
    rope = RopeReader(reader, *found, name_of(kind), config.head_dim).read(config.note);
  };
  read(LayerType::kSlidingAttention, "sliding_attention", config.sliding_rope);
  read(LayerType::kAttention, "full_attention", config.rope);
}

}  // namespace

void read_lfm3(const ConfigReader& reader, ModelConfig& config) {
  constexpr int64_t kSmallestHead = 6;
  config.head_dim = reader.integer_or("head_dim", 128);
  if (config.head_dim % 2 != 0 || config.head_dim < kSmallestHead)
    reader.fail(fmt::format("head_dim is {}, expected an even number, at least {}", config.head_dim, kSmallestHead));
  if (config.heads % config.kv_heads != 0)
    reader.fail(fmt::format("num_key_value_heads is {}, expected a divisor of num_attention_heads = {}",
                            config.kv_heads, config.heads));
  if (config.heads * config.head_dim > static_cast<int64_t>(kMaxDimension))
    reader.fail(fmt::format("{} heads of {} elements, expected at most {} elements in all", config.heads,
                            config.head_dim, kMaxDimension));
  config.ffn = reader.integer("intermediate_size");
  const bool slides = std::ranges::find(config.layer_types, LayerType::kSlidingAttention) != config.layer_types.end();
  if (slides || reader.find_unless_null("sliding_window") != nullptr) {
    const int64_t window = reader.integer_or("sliding_window", 256, INT32_MAX);
    if (slides) config.window = window;
  }
  read_ropes(reader, config);
  // rms_norm_eps is another name, which wins.
  config.norm_eps = static_cast<float>(reader.real("rms_norm_eps", static_cast<double>(config.norm_eps)));
  config.conv_length = reader.integer_or("conv_L_cache", 7, kMaxConvLength);
  config.sandwich_norms = reader.boolean("use_sandwich_norm", true);
  config.head_gates = reader.boolean("use_attention_gate", true);
  config.attention_bias = reader.boolean("attention_bias", false);
  config.tied_embedding = reader.boolean("tie_word_embeddings", true);
}

}  // namespace lfm2
