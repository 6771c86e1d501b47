// HDF5 allocates every dataset at once and reports its offset. Plain writes then write the bytes there, without a copy
// inside the library and in parallel with reading.
#include "weights-tools/formats/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/checksum.h"
#include "stage/hdf5/h5_scan.h"
#include "stage/shards/shard_folder.h"
#include "stage/shards/shard_format.h"
#include "stage/shards/shard_reader.h"

namespace lfm2 {

namespace {

namespace fs = std::filesystem;

// Bytes that HDF5 may still append after the datasets were created.
constexpr uint64_t kMetadataReserve = 65536;
const char* const kNoChecksum = "00000000000000000000000000000000";

// The stage whose file holds a tensor: the embedding is in the first stage's, the final norm and the LM head in the
// last stage's.
size_t stage_of(const TensorSpec& spec, const std::vector<LayerRange>& stages) {
  const int64_t layer = std::clamp<int64_t>(spec.layer, 0, stages.back().end() - 1);
  const auto at =
      std::find_if(stages.begin(), stages.end(), [&](const LayerRange& range) { return layer < range.end(); });
  return static_cast<size_t>(at - stages.begin());
}

bool take_text(std::string_view& rest, std::string_view text) {
  if (!rest.starts_with(text)) return false;
  rest.remove_prefix(text.size());
  return true;
}

bool take_digits(std::string_view& rest) {
  const size_t count = std::min(rest.find_first_not_of("0123456789"), rest.size());
  rest.remove_prefix(count);
  return count > 0;
}

// Whether `rest` is what temporary_name() appends to a name.
bool is_temporary_ending(std::string_view rest) {
  return take_text(rest, ".tmp.") && take_digits(rest) && rest.empty();
}

// Whether `rest` is a name such as stage-00-of-04.h5, of any split, or the temporary name of such a file.
bool is_name_of_split(std::string_view rest) {
  if (!take_text(rest, "stage-") || !take_digits(rest) || !take_text(rest, "-of-") || !take_digits(rest) ||
      !take_text(rest, ".h5"))
    return false;
  return rest.empty() || is_temporary_ending(rest);
}

// The text files that a shard of an earlier split lists; none if it is damaged.
std::map<std::string, std::string> older_text_files(const fs::path& older_shard) {
  try {
    return text_files_of(h5::scan(CheckedFile(older_shard)).attributes, older_shard.string());
  } catch (const Error&) {
    return {};
  }
}

// Temporary files of a split that was killed while it wrote the text file `name`.
void add_unfinished(const fs::path& folder, std::string_view name, std::vector<fs::path>& found) {
  const fs::path path = folder / name;
  const std::string file = path.filename().string();
  std::error_code error;
  if (!fs::is_directory(path.parent_path(), error)) return;
  for (const auto& entry : fs::directory_iterator(path.parent_path())) {
    const std::string other = entry.path().filename().string();
    std::string_view rest = other;
    if (take_text(rest, file) && is_temporary_ending(rest)) found.push_back(entry.path());
  }
}

// The text files of earlier splits in the folder that the new split lacks. A file that no shard lists may be the
// user's, so it stays.
void add_older_text_files(const fs::path& folder, const std::vector<TextFile>& replaced, std::vector<fs::path>& found) {
  std::set<std::string> listed;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!is_shard_name(entry.path().filename())) continue;
    for (const auto& [name, checksum] : older_text_files(entry.path())) listed.insert(name);
  }
  for (const TextFile& file : replaced) listed.erase(file.name);
  for (const std::string& name : listed) found.push_back(folder / name);
  for (const std::string_view name : shard::kTextFiles) add_unfinished(folder, name, found);
}

// The files of earlier splits, even killed ones, in the folder under names that the new split does not use. Any other
// .h5 file would count as a shard, so it is refused.
std::vector<fs::path> find_older(const fs::path& folder, size_t stages, const std::vector<TextFile>& text_files) {
  std::set<std::string> replaced;
  for (size_t stage = 0; stage < stages; ++stage)
    replaced.insert(shard::file_name(static_cast<int64_t>(stage), static_cast<int64_t>(stages)));
  std::vector<fs::path> older;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (is_name_of_split(file)) {
      if (!replaced.contains(file)) older.push_back(entry.path());
    } else if (is_shard_name(entry.path().filename())) {
      throw Error(ExitCode::kCantCreate,
                  fmt::format("{}: is no shard, expected a folder for shards only", entry.path().string()));
    }
  }
  add_older_text_files(folder, text_files, older);
  return older;
}

}  // namespace

ShardWriter::ShardWriter(const ModelSource& source, std::vector<LayerRange> stages, std::optional<DType> dtype,
                         const fs::path& folder, bool force, const std::vector<TextFile>& text_files)
    : source_(source),
      stages_(std::move(stages)),
      folder_(folder, force),
      older_(find_older(folder, stages_.size(), text_files)),
      texts_(text_files, folder, force) {
  const std::string listed = text_files.empty() ? std::string() : text_files_attribute(text_files);
  for (size_t stage = 0; stage < stages_.size(); ++stage) files_.push_back(create_stage(stage, listed));
  std::vector<uint64_t> ends(stages_.size(), 0);
  for (size_t i = 0; i < source_.tensors().size(); ++i) {
    const SourceTensor& tensor = source_.tensors()[i];
    TargetTensor target{i, target_dtype(tensor, dtype), 0, stage_of(tensor.spec, stages_), 0};
    target.bytes = numel(tensor.spec.dims) * size_bytes(target.dtype);
    h5::File& file = files_[target.file].h5;
    target.offset = file.create_dataset(tensor.spec.name, target.dtype, tensor.spec.dims);
    file.set_attribute(shard::kChecksumAttribute, kNoChecksum, tensor.spec.name);
    if (target.dtype == DType::kF8) file.set_attribute(shard::kElementTypeAttribute, shard::kFp8Type, tensor.spec.name);
    if (!tensor.checkpoint_name.empty())
      file.set_attribute(shard::kCheckpointNameAttribute, tensor.checkpoint_name, tensor.spec.name);
    ends[target.file] = std::max(ends[target.file], target.offset + target.bytes);
    tensors_.push_back(target);
  }
  checksums_.resize(tensors_.size());
  for (size_t stage = 0; stage < files_.size(); ++stage) {
    files_[stage].h5.flush();
    files_[stage].bytes.reserve(ends[stage] + kMetadataReserve);
  }
}

ShardWriter::StageFile ShardWriter::create_stage(size_t stage, const std::string& text_files) {
  const auto number = static_cast<int64_t>(stage), count = static_cast<int64_t>(stages_.size());
  GrowingFile bytes(folder_.path() / shard::file_name(number, count));
  h5::File file = h5::File::create(bytes.temporary_path());
  file.set_attribute(shard::kFormatAttribute, shard::kFormat);
  file.set_attribute(shard::kVersionAttribute, holds_fp8(source_) ? shard::kFp8Version : shard::kVersion);
  file.set_attribute(shard::kModelTypeAttribute, std::string(source_.config().type_name()));
  file.set_attribute(shard::kStageAttribute, number);
  file.set_attribute(shard::kStagesAttribute, count);
  file.set_attribute(shard::kLayerFirstAttribute, stages_[stage].first);
  file.set_attribute(shard::kLayerCountAttribute, stages_[stage].count);
  file.set_attribute(shard::kCreatedByAttribute, "weights-tools " LFM2_VERSION);
  file.set_attribute(shard::kGapsAttribute, shard::kZeroGaps);
  if (!text_files.empty()) file.set_attribute(shard::kTextFilesAttribute, text_files);
  if (!source_.adapters().empty()) file.set_attribute(shard::kAdaptersAttribute, adapters_text(source_.adapters()));
  file.set_attribute(shard::kSplitIdAttribute, kNoChecksum);
  file.set_attribute(shard::kConfigAttribute, source_.config_text());
  return {std::move(bytes), std::move(file)};
}

void ShardWriter::write(size_t target, uint64_t first_byte, std::span<const std::byte> bytes) {
  files_[tensors_[target].file].bytes.write_at(tensors_[target].offset + first_byte, bytes);
}

void ShardWriter::finish(size_t target, const std::string& checksum) { checksums_[target] = checksum; }

// A hash of the model and of the cut. Equal input gives equal files, and files of two splits cannot be mixed.
std::string ShardWriter::split_id() const {
  Checksum id;
  const auto add = [&](const std::string& text) { id.add(std::as_bytes(std::span(text))); };
  add(source_.config_text());
  for (const LayerRange& range : stages_) add(fmt::format("\n{} {}", range.first, range.count));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    add(fmt::format("\n{} {}", name(tensors_[i].dtype), checksums_[i]));
    add(source_.tensors()[tensors_[i].source].checkpoint_name);
  }
  if (!source_.adapters().empty()) add(adapters_text(source_.adapters()));
  return id.hex();
}

// HDF5 leaves old content in space that it no longer uses. Zeros are written only where a byte is not 0.
void ShardWriter::clear_gaps(StageFile& stage) {
  const CheckedFile file(stage.bytes.temporary_path());
  std::vector<std::byte> bytes;
  for (const h5::Extent& gap : h5::scan(file).gaps(file.size())) {
    bytes.resize(gap.bytes);
    file.read(gap.first, bytes);
    if (std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; })) continue;
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    stage.bytes.write_at(gap.first, bytes);
  }
}

void ShardWriter::commit() {
  const std::string id = split_id();
  for (size_t i = 0; i < tensors_.size(); ++i)
    files_[tensors_[i].file].h5.set_attribute(shard::kChecksumAttribute, checksums_[i],
                                              source_.tensors()[tensors_[i].source].spec.name);
  for (StageFile& file : files_) {
    file.h5.set_attribute(shard::kSplitIdAttribute, id);
    file.h5.close();
    clear_gaps(file);
  }
  for (StageFile& file : files_) file.bytes.sync();
  texts_.commit();
  for (StageFile& file : files_) file.bytes.commit();
  folder_.keep();
  for (const fs::path& path : older_) {
    fs::remove(path);
    std::error_code ignored;
    // A subfolder of the shards' folder is removed with its last file.
    if (path.parent_path() != (folder_.path() / "").parent_path()) fs::remove(path.parent_path(), ignored);
  }
}

}  // namespace lfm2
