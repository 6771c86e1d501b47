// The parsers take files, so each process writes each input into a folder of its own, in memory where there is
// /dev/shm.
#include "fuzz/targets.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz/http_target.h"
#include "fuzz/request_targets.h"
#include "kernels/error.h"
#include "kernels/thread_pool.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/io/input_file.h"
#include "stage/io/journal.h"
#include "stage/io/lines/line_reader.h"
#include "stage/io/lines/request_line.h"
#include "stage/model/model_config.h"
#include "stage/model/tensor_table.h"
#include "stage/shards/shard_format.h"
#include "stage/shards/shard_reader.h"
#include "stage/support/checked_file.h"
#include "stage/support/json.h"
#include "text/chat_template.h"
#include "text/stream_decoder.h"
#include "text/text_model.h"
#include "text/tokenizer.h"
#include "weights-tools/formats/hf_index.h"
#include "weights-tools/formats/model_bin.h"
#include "weights-tools/formats/safetensors.h"
#include "weights-tools/model/model_source.h"

namespace lfm2::fuzz {

namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const std::byte>;

class Folder {
 public:
  Folder() {
    std::error_code error;
    const fs::path in_memory = "/dev/shm";
    std::string name =
        ((fs::is_directory(in_memory, error) ? in_memory : fs::temp_directory_path()) / "lfm2-fuzz-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path write(const std::string& name, Bytes bytes) const {
    const fs::path path = path_ / name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush().good()) std::abort();
    return path;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

Bytes bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// A parser may end early only by throwing an Error with kData or the code `also`.
template <class F>
void expect_only_errors(F&& parse, ExitCode also = ExitCode::kData) {
  try {
    parse();
  } catch (const Error& error) {
    const std::string message = error.what();
    const bool right_code =
        error.code() == ExitCode::kData || error.code() == ExitCode::kNoInput || error.code() == also;
    const bool one_line = printable(message) == message || message.ends_with("…");
    if (right_code && one_line && !message.empty() && message.size() < 5000) return;
    fmt::print(stderr, "exit code {}: {} ({})\n", static_cast<int>(error.code()), message, error.where());
    std::abort();
  }
}

void read_everything(const CheckedFile& file, const RawTensors& tensors) {
  std::vector<std::byte> bytes;
  for (const auto& [name, tensor] : tensors) {
    bytes.resize(tensor.bytes);
    file.read(tensor.offset, bytes);
  }
}

void read_everything(const ModelSource& model) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < model.tensors().size(); ++i) {
    bytes.resize(model.tensors()[i].bytes);
    model.read(i, 0, bytes);
  }
}

// A small model, so that a mutated file can still match it.
constexpr std::string_view kConfig = R"({"model_type": "lfm2_moe", "vocab_size": 16, "hidden_size": 8,
  "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "num_attention_heads": 2,
  "num_key_value_heads": 1, "intermediate_size": 8, "num_dense_layers": 1, "num_experts": 2, "num_experts_per_tok": 1,
  "moe_intermediate_size": 8, "max_position_embeddings": 64})";

const Folder& model_folder() {
  static const Folder folder;
  [[maybe_unused]] static const fs::path config = folder.write("config.json", bytes_of(kConfig));
  return folder;
}

void model_bin(Bytes bytes) {
  const fs::path path = model_folder().write("model.bin", bytes);
  expect_only_errors([&] {
    const CheckedFile file(path);
    read_everything(file, read_model_bin_header(file));
  });
  expect_only_errors([&] { read_everything(*open_model(path)); });
}

void safetensors(Bytes bytes) {
  const fs::path path = model_folder().write("one.safetensors", bytes);
  expect_only_errors([&] {
    const CheckedFile file(path);
    read_everything(file, read_safetensors_header(file, 0));
  });
  expect_only_errors([&] { read_everything(*open_model(path)); });
}

void index_json(Bytes bytes) {
  static const Folder folder;
  [[maybe_unused]] static const fs::path part = [] {
    const std::string_view header =
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F16","shape":[2],"data_offsets":[4,8]}})";
    std::string text(1, static_cast<char>(header.size()));
    text.append(7, '\0').append(header).append(8, 'x');
    return folder.write("part.safetensors", bytes_of(text));
  }();
  const fs::path path = folder.write("model.safetensors.index.json", bytes);
  expect_only_errors([&] {
    const IndexedCheckpoint checkpoint = open_indexed_checkpoint(path);
    for (const auto& [name, tensor] : checkpoint.tensors) {
      std::vector<std::byte> data(tensor.bytes);
      checkpoint.files.at(tensor.file).read(tensor.offset, data);
    }
  });
}

void config_json(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  expect_only_errors([&] {
    const ModelConfig config = parse_model_config(text, "config.json");
    uint64_t total = 0;
    for (const TensorSpec& spec : model_tensors(config)) total = checked_add(total, numel(spec.dims), spec.name);
    if (config.layer_types.size() != static_cast<size_t>(config.layers) || total == 0) std::abort();
  });
}

// Lines that were refused have no ids, and are answered with one line.
void check_samples(const Samples& samples, const InputLimits& limits) {
  if (samples.offsets.back() != static_cast<int64_t>(samples.ids.size())) std::abort();
  for (const int32_t id : samples.ids)
    if (id < 0 || id >= limits.vocab) std::abort();
  size_t next_error = 0;
  for (int64_t i = 0; i < samples.count(); ++i) {
    const int64_t length = samples.offsets.length(i);
    const bool refused = next_error < samples.errors.size() && samples.errors.sample(next_error) == i;
    if (!refused && (length < 1 || length > limits.max_positions)) std::abort();
    if (!refused) continue;
    const std::string_view error = samples.errors.text(next_error++);
    if (length != 0 || error.empty() || error.size() > 5000) std::abort();
  }
  if (next_error != samples.errors.size()) std::abort();
}

void read_input(const char* name, Bytes bytes) {
  static const Folder folder;
  const fs::path path = folder.write(name, bytes);
  for (const InputLimits& limits : {InputLimits{1000, 100, 0}, InputLimits{10, 4, 2}})
    expect_only_errors([&] { check_samples(read_samples(path, limits), limits); });
}

// Of /v1/embeddings: every line has inputs, of as many tokens as the model has positions at most.
void check_inputs(const Samples& samples, const LineContext& context) {
  const SampleOffsets &inputs = samples.inputs, &tokens = samples.input_tokens;
  if (inputs.samples() != samples.count() || samples.in_base64.samples() != samples.count()) std::abort();
  if (inputs.back() != tokens.samples() || tokens.back() != samples.offsets.back()) std::abort();
  for (int64_t sample = 0; sample < samples.count(); ++sample)
    if (inputs.length(sample) < 1) std::abort();
  for (int64_t input = 0; input < tokens.samples(); ++input)
    if (tokens.length(input) < 1 || tokens.length(input) > context.max_positions) std::abort();
  for (const int32_t id : samples.tokens(0, samples.offsets.back()))
    if (id < 0 || id >= context.vocab) std::abort();
}

void read_lines_of(const char* name, Bytes bytes, const LineContext& context, int64_t max_samples) {
  static const Folder folder;
  static ThreadPool threads(1);
  const fs::path path = folder.write(name, bytes);
  expect_only_errors([&] {
    LineReader reader(path);
    const Samples samples = read_lines(reader, context, max_samples, threads);
    if (context.embeddings) return check_inputs(samples, context);
    check_samples(samples, {context.vocab, context.max_positions, max_samples});
    if (!context.continues && samples.errors.size() > 0) std::abort();
    for (int64_t sample = 0; sample < samples.count(); ++sample)
      if (!context.continues && is_batch_form(samples.rules[sample].form)) std::abort();
  });
}

void inputs_bin(Bytes bytes) { read_input("inputs.bin", bytes); }

// Lines of ids, without a tokenizer.
void inputs_jsonl(Bytes bytes) {
  for (const bool continues : {false, true}) {
    LineContext context{.vocab = 1000, .max_positions = 100, .text_error = "no tokenizer", .continues = continues};
    read_lines_of("inputs.jsonl", bytes, context, 0);
    context.vocab = 10;
    context.max_positions = 4;
    read_lines_of("inputs.jsonl", bytes, context, 2);
  }
}

// Only as far as the scan: behind it the library would read chunks, and its bugs are the reason for the scan.
void inputs_h5(Bytes bytes) {
  static const Folder folder;
  const fs::path path = folder.write("inputs.h5", bytes);
  bool chunked = true;
  expect_only_errors([&] {
    const CheckedFile file(path);
    chunked = false;
    for (const auto& [name, dataset] : h5::scan(file, {.only = {"input_ids", "offsets"}}).datasets)
      chunked |= dataset.storage != h5::ScannedDataset::Storage::kContiguous || !dataset.type.little_endian;
  });
  if (!chunked) read_input("inputs.h5", bytes);
}

void h5_scan(Bytes bytes) {
  static const Folder folder;
  const fs::path path = folder.write("any.h5", bytes);
  expect_only_errors([&] {
    const CheckedFile file(path);
    const h5::Scan scan = h5::scan(file);
    uint64_t end = 0;
    for (const h5::Extent& extent : scan.extents) {
      if (extent.first < end || extent.end() > file.size()) std::abort();
      end = extent.end();
    }
    for (const auto& [name, dataset] : scan.datasets) {
      std::vector<std::byte> data(dataset.bytes);
      file.read(dataset.offset, data);
    }
    h5::expect_empty_gaps(file, scan);
  });
}

void shards(Bytes bytes) {
  static const Folder folder;
  folder.write(shard::file_name(0, 1), bytes);
  expect_only_errors([&] {
    const ShardSet set = ShardSet::open(folder.path());
    for (const ShardTensor& tensor : set.tensors()) {
      if (!tensor.contiguous) continue;
      expect_only_errors([&] { set.read(tensor, [](uint64_t, Bytes) {}); });
    }
  });
}

// Reads the journal as a run with --resume does.
void journal(Bytes bytes) {
  static const Folder folder;
  constexpr int64_t kSamples = 100;
  const fs::path file = folder.write("o.bin.journal", bytes), output = folder.path() / "o.bin";
  expect_only_errors(
      [&] {
        std::optional<JournalContent> content = read_journals(output, kSamples);
        if (!content) return;
        if (content->records.size() > kSamples) std::abort();
        leave_out_impossible(*content, kSamples);
        int64_t next = 0;
        for (const JournalRecord& record : content->records) {
          if (record.first < next || record.count < 1 || record.count > kSamples - record.first) std::abort();
          next = record.first + record.count;
        }
        if (!job_of(*content, file).is_object()) std::abort();
      },
      ExitCode::kCantCreate);
}

// Ids must lie in the vocabulary and give the text again, but for what added tokens with lstrip or rstrip take.
void encode_and_decode(const Tokenizer& tokenizer, std::string_view text, bool same) {
  std::vector<TokenId> ids;
  tokenizer.encode(text, true, ids);
  for (const TokenId id : ids)
    if (id < 0 || static_cast<size_t>(id) >= tokenizer.size()) std::abort();
  ids.clear();
  tokenizer.encode(text, false, ids);
  if (same && tokenizer.decode(ids, false) != text) std::abort();
  std::string streamed, whole;
  StreamDecoder decoder(tokenizer, false);
  for (const TokenId id : ids) streamed += decoder.feed(id);
  streamed += decoder.flush();
  Utf8Stream utf8;
  utf8.feed(tokenizer.decode(ids, false), whole);
  utf8.flush(whole);
  if (streamed != whole) std::abort();
}

std::string small_tokenizer() {
  return read_text_file(fs::path(LFM2_FUZZ_CORPUS_DIR) / "tokenizer_json/small", 1 << 20);
}

void parse_and_encode(std::string_view json) {
  expect_only_errors([&] {
    const Tokenizer tokenizer = Tokenizer::parse(json, "tokenizer.json");
    for (TokenId id = -1; id < 300; ++id) (void)tokenizer.bytes(id);
    for (const std::string_view sample :
         {"Hello, it's 12345\r\n\n  x \xff\xe4\xbd\xa0<|im_start|>python", "aaaaaaaaaaaaaaaaaaaa", ""})
      encode_and_decode(tokenizer, sample, false);
    encode_and_decode(tokenizer, std::string(300, 'a') + std::string(300, ' '), false);
  });
}

// The input is a tokenizer.json, or a JSON merge patch for the small one.
void tokenizer_json(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  parse_and_encode(text);
  expect_only_errors([&] {
    const Json patch = parse_json(text, "patch");
    static const Json small = parse_json(small_tokenizer(), "small");
    if (!patch.is_object() || patch.contains("model")) return;
    Json json = small;
    json.merge_patch(patch);
    parse_and_encode(json.dump());
  });
}

// The tokenizer that is the corpus of tokenizer_json.
void tokenizer_text(Bytes bytes) {
  static const Tokenizer tokenizer = Tokenizer::parse(small_tokenizer(), "tokenizer.json");
  encode_and_decode(tokenizer, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), true);
}

// A template, and behind a NUL the JSON of a conversation where it has one.
void chat_template(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t end = std::min(text.find('\0'), text.size());
  constexpr std::string_view kConversation = R"({"messages": [{"role": "system", "content": "Be brief é."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": null, "tool_calls":
    [{"type": "function", "function": {"name": "f", "arguments": {"a": [1, 2.5, "x"], "b": null}}}]},
    {"role": "tool", "content": "<think>42</think> is it"}], "tools": [{"type": "function", "function": {"name": "f"}}]})";
  constexpr jinja::Limits kLimits = {.steps = 200'000, .memory_bytes = 32 << 20, .output_bytes = 8 << 20};
  expect_only_errors([&] {
    const OrderedJson conversation =
        parse_ordered_json(end < text.size() ? text.substr(end + 1) : kConversation, "conversation");
    const OrderedJson none;
    const auto part = [&](const char* key) -> const OrderedJson& {
      return conversation.is_object() && conversation.contains(key) ? conversation[key] : none;
    };
    const ChatTemplate chat = ChatTemplate::parse(text.substr(0, end), "template");
    ChatInput input{part("messages"), part("tools")};
    input.add_generation_prompt = true;
    input.special_tokens = {{"bos_token", "<|first|>"}, {"eos_token", "<|last|>"}};
    const std::string first = chat.render(input, kLimits);
    if (chat.render(input, kLimits) != first) std::abort();
  });
}

// Lines of text, prompts, messages and batches, and the same bytes as .txt.
void inputs_text(Bytes bytes) {
  static const TextModel text = [] {
    const Folder folder;
    folder.write("tokenizer.json", bytes_of(small_tokenizer()));
    folder.write("chat_template.jinja",
                 bytes_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson }}"));
    return TextModel::open(folder.path());
  }();
  for (const bool continues : {false, true})
    for (const bool strict : {false, true}) {
      LineContext context{.vocab = static_cast<int64_t>(text.tokenizer().size()),
                          .max_positions = 500,
                          .hidden = 3,
                          .text = &text,
                          .strict = strict,
                          .continues = continues};
      read_lines_of("inputs.jsonl", bytes, context, 0);
      context.embeddings = !continues;
      if (context.embeddings) read_lines_of("inputs.jsonl", bytes, context, 0);
      context.embeddings = false;
      context.scores = !continues;
      if (context.scores) read_lines_of("inputs.jsonl", bytes, context, 0);
      if (!strict) read_lines_of("inputs.txt", bytes, context, 3);
    }
}

constexpr std::array kTargets = {
    Target{"model_bin", model_bin},
    Target{"safetensors", safetensors},
    Target{"index_json", index_json},
    Target{"config_json", config_json},
    Target{"inputs_bin", inputs_bin},
    Target{"inputs_jsonl", inputs_jsonl},
    Target{"inputs_text", inputs_text},
    Target{"inputs_h5", inputs_h5},
    Target{"h5_scan", h5_scan},
    Target{"shards", shards},
    Target{"journal", journal},
    Target{"tokenizer_json", tokenizer_json},
    Target{"tokenizer_text", tokenizer_text},
    Target{"chat_template", chat_template},
    Target{"http", http_connection},
    Target{"openai_request", openai_request},
    Target{"tool_calls", tool_calls},
};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target& find_target(std::string_view name) {
  for (const Target& target : kTargets)
    if (target.name == name) return target;
  std::abort();
}

}  // namespace lfm2::fuzz
