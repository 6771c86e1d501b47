// Strict JSON. nlohmann's parser keeps the last of two equal keys and accepts any depth; its callback refuses both
// here.
#include "stage/support/json.h"

#include <set>
#include <vector>

#include "kernels/error.h"

namespace lfm2 {

namespace {
constexpr int kMaxDepth = 16;
}

Json parse_json(std::string_view text, const std::string& what) {
  std::vector<std::set<std::string>> keys;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    const bool opens = event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth >= kMaxDepth)  // the outermost object or array has depth 0
      throw Error(ExitCode::kData, fmt::format("{}: JSON nested deeper than {} levels", what, kMaxDepth));
    switch (event) {
      case Json::parse_event_t::object_start:
        keys.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second)
          throw Error(ExitCode::kData,
                      fmt::format("{}: JSON key \"{}\" stands twice", what, parsed.get<std::string>()));
        break;
      case Json::parse_event_t::array_start:
      case Json::parse_event_t::array_end:
      case Json::parse_event_t::value:
        break;
    }
    return true;
  };
  if (text.find('\0') != std::string_view::npos)  // a NUL would end the text for the parser
    throw Error(ExitCode::kData, fmt::format("{}: not valid JSON: a NUL character", what));
  try {
    return Json::parse(text, callback);
  } catch (const Json::exception& error) {
    std::string message = error.what();
    // The rest of the message repeats the file's content, which may be long.
    const size_t end = message.find("; last read");
    if (end != std::string::npos) message.resize(end);
    throw Error(ExitCode::kData, fmt::format("{}: not valid JSON: {}", what, message));
  }
}

std::string json_excerpt(const Json& value) {
  std::string text = json_text(value);
  if (text.size() > 80) text = text.substr(0, 80) + "…";
  return text;
}

uint64_t json_unsigned(const Json& value, uint64_t limit, const std::string& what, std::string_view key) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > limit)
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is {}, expected an integer from 0 to {}", what, key,
                                             json_excerpt(value), limit));
  return value.get<uint64_t>();
}

}  // namespace lfm2
