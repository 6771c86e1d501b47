// adapter_config.json of PEFT: the ranks and scales of a LoRA adapter. Whatever else would change the sum is refused.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression/expression.h"

namespace lfm2 {

// W' = W + s · B A, with s = lora_alpha / r or, with use_rslora, lora_alpha / sqrt(r). Both numbers are those of the
// module: patterns may set them for some.
class AdapterConfig {
 public:
  AdapterConfig() = default;
  // `what` names the file. Error(kData), naming the key, for a value that is not computed, and for an unknown key,
  // unless it is null, false or empty.
  AdapterConfig(std::string_view json_text, const std::string& what);

  // `module` is the module's name in transformers, such as "model.layers.0.feed_forward.w1".
  uint64_t rank(const std::string& module) const;
  float scale(const std::string& module) const;
  // Whether target_parameters lists this parameter, given with its module.
  bool targets_parameter(std::string_view parameter) const;
  // The ids that trainable_token_indices lists for the module; a plain list is that of the embedding.
  std::vector<uint64_t> trained_tokens(std::string_view module) const;
  // The modules that modules_to_save and trainable_token_indices list, as they list them.
  std::vector<std::string> trained_modules() const;
  // Whether modules_to_save lists the module.
  bool saves_module(std::string_view module) const;
  // Whether PEFT was older than 0.20, which exchanges the factors of experts; nothing if the version is unknown.
  std::optional<bool> exchanges_experts() const { return exchanges_experts_; }

 private:
  // The number that a regular expression sets for modules.
  struct Pattern {
    std::shared_ptr<grammar::Expressions> expressions;
    grammar::Expr expression;
    double number = 0;
  };
  static Pattern read_pattern(const std::string& key, double number, const std::string& what);
  static double number_of(const std::vector<Pattern>& patterns, const std::string& module, double otherwise);

  double rank_ = 0, alpha_ = 0;
  bool rank_stabilized_ = false;
  std::vector<Pattern> rank_patterns_, alpha_patterns_;  // the first that matches counts
  std::vector<std::string> target_parameters_, modules_to_save_;
  std::map<std::string, std::vector<uint64_t>> trained_tokens_;  // by module
  std::optional<bool> exchanges_experts_;
};

}  // namespace lfm2
