// Existing files are compared by device and inode. Other names are compared as absolute paths in which existing links
// are resolved.
#include "stage/job/named_files.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "stage/io/journal.h"
#include "stage/shards/shard_format.h"

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

struct NamedFile {
  const char* option;
  fs::path path;
  bool is_written;
  std::string text() const { return fmt::format("{} {}", option, path.string()); }
};

std::vector<NamedFile> named_files(const Options& options) {
  std::vector<NamedFile> files;
  if (options.first_input() != "-")
    for (const fs::path& input : options.inputs) files.push_back({"--input", input, false});
  files.insert(files.end(),
               {{"--generation-config", options.generation_config == "none" ? "" : options.generation_config, false},
                {"--reference", options.reference, false},
                {"--output", options.output, true},
                {"--report", options.report, true},
                {"--trace", options.trace, true}});
  std::erase_if(files, [](const NamedFile& file) { return file.path.empty(); });
  return files;
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (fs::exists(a, error) && fs::exists(b, error)) return fs::equivalent(a, b, error);
  if (fs::absolute(a, error).lexically_normal() == fs::absolute(b, error).lexically_normal()) return true;
  const fs::path real_a = fs::weakly_canonical(fs::absolute(a, error), error);
  return !error && real_a == fs::weakly_canonical(fs::absolute(b, error), error) && !error;
}

// Whether `path` names the same file as `first`, or as `first` with a point and more appended.
bool begins_as(const fs::path& path, const fs::path& first) {
  const std::string name = path.filename(), start = first.filename();
  if (!name.starts_with(start) || (name.size() > start.size() && name[start.size()] != '.'))
    return is_same(path, first);
  return is_same(path, fs::path(first).replace_filename(name));
}

void check_named(const std::vector<NamedFile>& files) {
  for (size_t i = 0; i < files.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if ((files[i].is_written || files[j].is_written) && is_same(files[i].path, files[j].path))
        throw Error(ExitCode::kUsage, fmt::format("{}: is the file of {} too, expected a file of its own",
                                                  files[i].text(), files[j].text()));
}

// Error(kUsage) if a file has the name of a file that the run creates and removes beside the output. Replicas and hosts
// append to the names of journals and stamps.
void check_made(const std::vector<NamedFile>& files, const Options& options) {
  std::vector<fs::path> exactly, beginnings{stamps_file(options)};
  if (!options.output.empty()) {
    exactly = {partial_path(options.output), pending_path(options.output)};
    beginnings.push_back(journal_path(options.output));
  }
  const auto refuse = [](const NamedFile& file, const fs::path& made) {
    throw Error(ExitCode::kUsage,
                fmt::format("{}: the run makes {} itself, expected another name", file.text(), made.string()));
  };
  for (const NamedFile& file : files) {
    for (const fs::path& made : exactly)
      if (is_same(file.path, made)) refuse(file, made);
    for (const fs::path& made : beginnings)
      if (begins_as(file.path, made)) refuse(file, made);
  }
}

// Error(kUsage) if a written file would count as a shard, as every .h5 file in the shards' folder does.
void check_shards(const std::vector<NamedFile>& files, const fs::path& weights) {
  std::error_code error;
  for (const NamedFile& file : files) {
    if (!file.is_written) continue;
    bool is_shard = file.path.extension() == ".h5" && is_same(fs::absolute(file.path, error).parent_path(), weights);
    for (auto entry = fs::directory_iterator(weights, error); !is_shard && !error && entry != end(entry);
         entry.increment(error))
      is_shard = entry->path().extension() == ".h5" && is_same(file.path, entry->path());
    if (is_shard)
      throw Error(ExitCode::kUsage,
                  fmt::format("{}: would be one of the shards of --weights {}, expected another folder", file.text(),
                              weights.string()));
  }
}

// Error(kUsage) if a written file is one of the text files in a tokenizer's or shards' folder.
void check_text_files(const std::vector<NamedFile>& files, const Options& options) {
  for (const fs::path& folder : {options.weights, options.tokenizer})
    for (const std::string_view name : shard::kTextFiles)
      for (const NamedFile& file : files)
        if (file.is_written && !folder.empty() && is_same(file.path, folder / name))
          throw Error(ExitCode::kUsage, fmt::format("{}: is the {} of {}, expected a file of its own", file.text(),
                                                    name, folder.string()));
}

}  // namespace

fs::path stamps_file(const Options& options) {
  return options.output.empty() ? "lfm2_stage.stall.txt" : options.output.string() + ".stall.txt";
}

void check_files(const Options& options) {
  const std::vector<NamedFile> files = named_files(options);
  check_named(files);
  check_made(files, options);
  check_shards(files, options.weights);
  check_text_files(files, options);
}

}  // namespace lfm2
