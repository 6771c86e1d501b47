// The command tokenize: text to ids and back, a line at a time, from stdin to stdout with the memory of a block of
// lines.
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/json/json.h"
#include "base/line_text.h"
#include "base/thread_pool.h"
#include "stage/shards/shard_format.h"
#include "text/text_model.h"
#include "weights-tools/commands/commands.h"
#include "weights-tools/model/interrupt.h"

namespace lfm2 {

namespace {

constexpr size_t kBlock = 4 << 20;   // bytes of lines in a block, which is read, converted and written
constexpr size_t kPart = 128 << 10;  // bytes of lines that a thread claims

int usable_cores() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  return sched_getaffinity(0, sizeof mine, &mine) == 0 ? std::max(1, CPU_COUNT(&mine)) : 1;
}

// Converts one line.
class LineConverter {
 public:
  LineConverter(const TextModel& model, const TokenizeOptions& options)
      : model_(model), tokenizer_(model.tokenizer()), options_(options), scratch_(tokenizer_.make_scratch()) {}

  // Error(kData) names the line.
  void convert(std::string_view line, uint64_t number, std::string& out) {
    if (options_.chat)
      encode_chat(line, number, out);
    else if (options_.decode)
      decode(line, line_name(number), out);
    else if (options_.json)
      encode_json(line, number, out);
    else
      encode(line, number, out);
    out += '\n';
  }

 private:
  static std::string line_name(uint64_t number) { return fmt::format("stdin: line {}", number); }

  void encode_json(std::string_view line, uint64_t number, std::string& out) {
    const std::string name = line_name(number);
    const Json text = parse_json(line, name);
    if (!text.is_string())
      throw Error(ExitCode::kData, fmt::format("{}: {}, expected a string", name, json_excerpt(text)));
    encode(text.get_ref<const std::string&>(), number, out);
  }

  // Templates write the special tokens themselves.
  void encode_chat(std::string_view line, uint64_t number, std::string& out) {
    const std::string name = line_name(number);
    const OrderedJson chat = parse_ordered_json(line, name, LargeIntegers::kDigits);
    if (!chat.is_object() || !chat.contains("messages") || !chat["messages"].is_array())
      throw Error(ExitCode::kData, fmt::format("{}: expected an object with \"messages\": [...]", name));
    for (const auto& [key, value] : chat.items())
      if (key != "messages" && key != "tools" && key != "chat_template_kwargs")
        throw Error(
            ExitCode::kData,
            fmt::format("{}: unknown key \"{}\", expected messages, tools and chat_template_kwargs", name, key));
    std::string text;
    try {
      const OrderedJson tools = chat.contains("tools") ? chat["tools"] : OrderedJson();
      const OrderedJson variables =
          chat.contains("chat_template_kwargs") ? chat["chat_template_kwargs"] : OrderedJson::object();
      text = model_.chat_text(chat["messages"], tools, variables, std::time(nullptr));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", name, error.what()));
    }
    if (options_.render)
      out += json_text(Json(text));
    else
      encode(text, number, out);
  }

  void encode(std::string_view text, uint64_t number, std::string& out) {
    ids_.clear();
    try {
      tokenizer_.encode(text, !options_.no_special && !options_.chat, ids_, *scratch_);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", line_name(number), error.what()));
    }
    out += '[';
    append_values(out, std::span<const TokenId>(ids_));
    out += ']';
  }

  void decode(std::string_view line, const std::string& line_name, std::string& out) {
    const Json list = parse_json(line, line_name);
    if (!list.is_array())
      throw Error(ExitCode::kData, fmt::format("{}: {}, expected a list of ids", line_name, json_excerpt(list)));
    ids_.clear();
    for (const Json& id : list) ids_.push_back(static_cast<TokenId>(json_unsigned(id, INT32_MAX, line_name, "id")));
    const std::string text = tokenizer_.decode(ids_, options_.no_special);
    if (options_.json) {
      out += json_text(Json(text));
    } else {
      if (text.find('\n') != std::string::npos)
        throw Error(ExitCode::kData,
                    fmt::format("{}: the text of these ids has a line break, which needs --json", line_name));
      out += text;
    }
  }

  const TextModel& model_;
  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  Tokenizer::ScratchPointer scratch_;
  std::vector<TokenId> ids_;
};

// Converts whole lines with all threads and writes the results in order.
class BlockConverter {
 public:
  BlockConverter(const TextModel& model, const TokenizeOptions& options)
      : pool_(options.threads == 0 ? usable_cores() : static_cast<int>(options.threads)) {
    for (size_t i = 0; i < pool_.threads(); ++i) converters_.emplace_back(model, options);
  }

  // Each line of `lines` ends with a line break; the last one may lack it.
  void convert(std::string_view lines) {
    parts_.clear();
    while (!lines.empty()) {
      const size_t end = lines.find('\n', std::min(kPart, lines.size() - 1));
      parts_.push_back({lines.substr(0, end == std::string_view::npos ? end : end + 1), 0, {}, nullptr});
      lines.remove_prefix(parts_.back().lines.size());
    }
    for (Part& part : parts_) {
      part.first_line = next_line_;
      next_line_ += static_cast<uint64_t>(std::count(part.lines.begin(), part.lines.end(), '\n'));
    }
    pool_.parallel_for(parts_.size(),
                       [&](size_t part, size_t worker) { convert_part(parts_[part], converters_[worker]); });
    for (const Part& part : parts_) {
      if (std::fwrite(part.out.data(), 1, part.out.size(), stdout) != part.out.size())
        throw Error(ExitCode::kIo, "stdout cannot be written");
      if (part.error) std::rethrow_exception(part.error);
    }
  }

 private:
  struct Part {
    std::string_view lines;
    uint64_t first_line;
    std::string out;
    std::exception_ptr error;  // of the line that follows those in `out`
  };

  static void convert_part(Part& part, LineConverter& converter) {
    uint64_t number = part.first_line;
    for (std::string_view rest = part.lines; !rest.empty(); ++number) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      const std::string_view text = text_of_line(line, number == 1);
      const size_t before = part.out.size();
      try {
        converter.convert(text, number, part.out);
      } catch (...) {
        part.out.resize(before);
        part.error = std::current_exception();
        return;
      }
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    }
  }

  ThreadPool pool_;
  std::vector<LineConverter> converters_;  // [threads]
  std::vector<Part> parts_;
  uint64_t next_line_ = 1;
};

// Reads stdin in blocks of whole lines.
class BlockReader {
 public:
  // The input so far up to its last line break, at least one line; the last line may lack a line break. Empty at the
  // end. Valid until the next call.
  std::string_view next() {
    std::copy(buffer_.begin() + offset(given_), buffer_.begin() + offset(filled_), buffer_.begin());
    filled_ -= given_;
    given_ = 0;
    size_t searched = 0;
    while (given_ == 0 || (filled_ < kBlock && more_is_there())) {
      if (filled_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
      const size_t count = read_some();
      filled_ += count;
      if (count == 0) return {buffer_.data(), given_ = filled_};
      const size_t line_break = std::string_view(buffer_.data(), filled_).substr(searched).rfind('\n');
      if (line_break != std::string_view::npos) given_ = searched + line_break + 1;
      searched = filled_;
    }
    return {buffer_.data(), given_};
  }

 private:
  static std::ptrdiff_t offset(size_t index) { return static_cast<std::ptrdiff_t>(index); }
  static bool more_is_there() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
  }
  size_t read_some() {
    for (;;) {
      throw_if_interrupted();
      const ssize_t count = read(STDIN_FILENO, buffer_.data() + filled_, buffer_.size() - filled_);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EINTR) throw Error(ExitCode::kIo, fmt::format("stdin cannot be read: {}", std::strerror(errno)));
    }
  }

  std::vector<char> buffer_ = std::vector<char>(kBlock);
  size_t filled_ = 0;
  size_t given_ = 0;  // bytes at the front that the last call returned
};

}  // namespace

void run_tokenize(const TokenizeOptions& options) {
  const TextModel model = TextModel::open(options.tokenizer);
  BlockConverter converter(model, options);
  BlockReader reader;
  for (std::string_view lines = reader.next(); !lines.empty(); lines = reader.next()) {
    converter.convert(lines);
    if (std::fflush(stdout) != 0) throw Error(ExitCode::kIo, "stdout cannot be written");
  }
}

}  // namespace lfm2
