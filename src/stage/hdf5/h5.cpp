// Every call of the HDF5 library is checked here. The library's own report of errors is silenced; its innermost line
// goes into our message.
#include "stage/hdf5/h5.h"

#include <algorithm>

namespace lfm2::h5 {

namespace {

// The innermost record of the library's error stack, which names the real cause, such as "truncated file: eof = 7,
// ...".
std::string library_message() {
  std::string text;
  const auto visit = [](unsigned, const H5E_error2_t* record, void* into) -> herr_t {
    *static_cast<std::string*>(into) = fmt::format("{} ({})", record->desc, record->func_name);
    return 1;  // upward from the innermost record; only its text is kept
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, visit, &text);
  H5Eclear2(H5E_DEFAULT);
  // The library's messages contain the text of ctime(), which ends with a newline.
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.empty() ? "HDF5 gave no reason" : text;
}

// Must come before any other call of the library. The library's own clean-up at exit crashes after a failed write (a
// full disk). It is not needed, since every file is closed by its owner.
void silence_library() {
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

}  // namespace

std::string library_version() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

Id file_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
    case DType::kI32:
      return {H5Tcopy(H5T_STD_I32LE), H5Tclose};
    case DType::kF8:
      return {H5Tcopy(H5T_STD_U8LE), H5Tclose};
    case DType::kBf16:
    case DType::kF16:
      break;
  }
  const bool bf16 = dtype == DType::kBf16;
  Id type{H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
  const bool made =
      bf16 ? H5Tset_fields(type.get(), 15, 7, 8, 0, 7) >= 0 : H5Tset_fields(type.get(), 15, 10, 5, 0, 10) >= 0;
  if (!made || H5Tset_precision(type.get(), 16) < 0 || H5Tset_size(type.get(), 2) < 0 ||
      H5Tset_ebias(type.get(), bf16 ? 127 : 15) < 0)
    throw Error(ExitCode::kSoftware, "HDF5 refuses a 16-bit float type: " + library_message());
  return type;
}

void File::fail(ExitCode code, const std::string& what) const {
  throw Error(code, fmt::format("{}: {}: {}", path_.string(), what, library_message()));
}

// Opens by descriptor, because the name may belong to another file since the scan.
File File::open(const CheckedFile& file) {
  silence_library();
  H5PLset_loading_state(0);  // no filters from plugins: they are code that the file chooses
  const Id access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose};
  H5Pset_file_locking(access.get(), true, true);  // without a lock if the file system has none
  Id id{H5Fopen(fmt::format("/proc/self/fd/{}", file.descriptor()).c_str(), H5F_ACC_RDONLY, access.get()), H5Fclose};
  if (!id)
    throw Error(ExitCode::kData,
                fmt::format("{}: cannot be opened as HDF5: {}", file.path().string(), library_message()));
  return File(file.path(), std::move(id));
}

File File::create(const std::filesystem::path& path) {
  silence_library();
  const Id access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose}, creation{H5Pcreate(H5P_FILE_CREATE), H5Pclose};
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_file_locking(access.get(), false, true);  // a lock of ours guards the name; some file systems have none
  H5Pset_alignment(access.get(), 4096, 4096);      // so that a loader can read with O_DIRECT and large pages
  H5Pset_obj_track_times(creation.get(), false);
  Id id{H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose};
  if (!id)
    throw Error(ExitCode::kCantCreate, fmt::format("{}: cannot be created: {}", path.string(), library_message()));
  return File(path, std::move(id));
}

Id File::open_dataset(const std::string& name) const {
  Id dataset{H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT), H5Dclose};
  if (!dataset) fail(ExitCode::kData, fmt::format("dataset {} cannot be opened", name));
  return dataset;
}

void File::set_attribute(const std::string& name, const std::string& value, const std::string& object) {
  const Id type{H5Tcopy(H5T_C_S1), H5Tclose}, space{H5Screate(H5S_SCALAR), H5Sclose};
  H5Tset_size(type.get(), value.size() + 1);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  // Writes by the object's id, because HDF5 1.10 cannot write an attribute that was opened by the object's name.
  const Id owner{H5Oopen(file_.get(), object.c_str(), H5P_DEFAULT), H5Oclose};
  Id attribute;
  if (H5Aexists(owner.get(), name.c_str()) > 0) {  // an attribute of the same length is overwritten in place
    attribute = {H5Aopen(owner.get(), name.c_str(), H5P_DEFAULT), H5Aclose};
    const Id present{H5Aget_type(attribute.get()), H5Tclose};
    if (H5Tequal(present.get(), type.get()) <= 0) {
      attribute = {};
      H5Adelete(owner.get(), name.c_str());
    }
  }
  if (!attribute)
    attribute = {H5Acreate2(owner.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  if (!attribute || H5Awrite(attribute.get(), type.get(), value.c_str()) < 0)
    fail(ExitCode::kIo, fmt::format("attribute {} of {} cannot be written", name, object));
}

void File::set_attribute(const std::string& name, int64_t value, const std::string& object) {
  const Id space{H5Screate(H5S_SCALAR), H5Sclose};
  const Id attribute{H5Acreate_by_name(file_.get(), object.c_str(), name.c_str(), H5T_STD_I64LE, space.get(),
                                       H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                     H5Aclose};
  if (!attribute || H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value) < 0)
    fail(ExitCode::kIo, fmt::format("attribute {} of {} cannot be written", name, object));
}

namespace {

// Contiguous, with its space allocated at once, and without time stamps. The library fills strings of variable length
// and nothing else.
Id make_dataset(hid_t file, const std::string& name, hid_t type, const std::vector<uint64_t>& dims) {
  const std::vector<hsize_t> extents(dims.begin(), dims.end());
  const Id space{H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose};
  const Id creation{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  H5Pset_layout(creation.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.get(), H5Tis_variable_str(type) > 0 ? H5D_FILL_TIME_ALLOC : H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.get(), false);
  return {H5Dcreate2(file, name.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Dclose};
}

// Selects rows [first, first + count) of the first axis in `space`; returns a memory space of the same shape.
Id select_rows(hid_t space, uint64_t first, uint64_t count) {
  const int rank = H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> extents(static_cast<size_t>(std::max(rank, 1)));
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  std::vector<hsize_t> start(extents.size(), 0), block = extents;
  start[0] = first;
  block[0] = count;
  if (rank < 1 || H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, block.data(), nullptr) < 0 ||
      first > extents[0] || count > extents[0] - first)
    return {};
  return {H5Screate_simple(rank, block.data(), nullptr), H5Sclose};
}

}  // namespace

uint64_t File::create_dataset(const std::string& name, DType dtype, const std::vector<uint64_t>& dims) {
  const Id dataset = make_dataset(file_.get(), name, file_type(dtype).get(), dims);
  if (!dataset) fail(ExitCode::kIo, fmt::format("dataset {} cannot be created", name));
  const haddr_t offset = H5Dget_offset(dataset.get());
  H5Eclear2(H5E_DEFAULT);
  return offset == HADDR_UNDEF ? 0 : offset;  // the library gives no offset to a dataset without elements
}

void File::write_i64(const std::string& name, const std::vector<int64_t>& values) {
  write_i64(name, static_cast<int64_t>(values.size()), [&](int64_t i) { return values[static_cast<size_t>(i)]; });
}

void File::write_i64(const std::string& name, int64_t count, const std::function<int64_t(int64_t)>& value_at) {
  constexpr int64_t kPiece = 1 << 16;
  const Id dataset = make_dataset(file_.get(), name, H5T_STD_I64LE, {static_cast<uint64_t>(count)});
  const auto fail_to_write = [&] { fail(ExitCode::kIo, fmt::format("dataset {} cannot be written", name)); };
  if (!dataset) fail_to_write();
  const Id space{H5Dget_space(dataset.get()), H5Sclose};
  std::vector<int64_t> piece;
  for (int64_t first = 0; first < count; first += kPiece) {
    piece.clear();
    for (int64_t i = first; i < std::min(count, first + kPiece); ++i) piece.push_back(value_at(i));
    const Id selected = select_rows(space.get(), static_cast<uint64_t>(first), piece.size());
    if (!selected ||
        H5Dwrite(dataset.get(), H5T_NATIVE_INT64, selected.get(), space.get(), H5P_DEFAULT, piece.data()) < 0)
      fail_to_write();
  }
}

void File::write_texts(const std::string& name, int64_t count, const std::function<std::string(int64_t)>& value_at) {
  constexpr int64_t kPiece = 1 << 12;
  const Id type{H5Tcopy(H5T_C_S1), H5Tclose};
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  const Id dataset = make_dataset(file_.get(), name, type.get(), {static_cast<uint64_t>(count)});
  const auto fail_to_write = [&] { fail(ExitCode::kIo, fmt::format("dataset {} cannot be written", name)); };
  if (!dataset) fail_to_write();
  const Id space{H5Dget_space(dataset.get()), H5Sclose};
  for (int64_t first = 0; first < count; first += kPiece) {
    std::vector<std::string> texts;
    std::vector<const char*> piece;
    for (int64_t i = first; i < std::min(count, first + kPiece); ++i) texts.push_back(value_at(i));
    for (const std::string& text : texts) piece.push_back(text.c_str());
    const Id selected = select_rows(space.get(), static_cast<uint64_t>(first), piece.size());
    if (!selected || H5Dwrite(dataset.get(), type.get(), selected.get(), space.get(), H5P_DEFAULT, piece.data()) < 0)
      fail_to_write();
  }
}

// Opens the dataset with a cache for a row of its chunks, so that each chunk is unpacked once if rows are read in
// order.
const Id& File::dataset_in_chunks(const std::string& name) const {
  const auto [found, is_new] = in_chunks_.try_emplace(name);
  if (!is_new) return found->second;
  Id plain = open_dataset(name);
  const Id creation{H5Dget_create_plist(plain.get()), H5Pclose}, space{H5Dget_space(plain.get()), H5Sclose};
  const Id type{H5Dget_type(plain.get()), H5Tclose};
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (H5Pget_layout(creation.get()) != H5D_CHUNKED || rank < 1) return found->second;
  const auto axes = static_cast<size_t>(rank);
  std::vector<hsize_t> chunk(axes), dims(axes);
  if (H5Pget_chunk(creation.get(), rank, chunk.data()) < 0 ||
      H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr) < 0)
    fail(ExitCode::kData, fmt::format("the chunks of dataset {} are not known", name));
  // Whatever shape the file claims, the cache is at most one chunk or 1 GiB.
  constexpr hsize_t kMaxCacheBytes = hsize_t{1} << 30, kMaxSlots = hsize_t{1} << 20;
  hsize_t chunks = 1, bytes = H5Tget_size(type.get()) * chunk[0];  // the library has checked that a chunk has < 4 GiB
  for (size_t axis = 1; axis < axes; ++axis) {
    chunks *= std::min(dims[axis] / chunk[axis] + 1, kMaxCacheBytes / chunks);
    bytes *= chunk[axis];
  }
  const hsize_t cached = std::max(std::min(chunks * bytes, kMaxCacheBytes), bytes);
  constexpr hsize_t kSlotsOfAChunk = 100, kPrime = 521;  // as the library's manual advises
  const Id access{H5Pcreate(H5P_DATASET_ACCESS), H5Pclose};
  plain = {};  // an open dataset keeps the cache with which it was opened
  H5Pset_chunk_cache(access.get(), std::min(chunks * kSlotsOfAChunk, kMaxSlots) + kPrime, cached, 1);
  found->second = Id{H5Dopen2(file_.get(), name.c_str(), access.get()), H5Dclose};
  return found->second;
}

void File::read_rows(const std::string& name, uint64_t first, uint64_t count, hid_t memory, void* into) const {
  if (count == 0) return;
  const Id& in_chunks = dataset_in_chunks(name);
  const Id contiguous = in_chunks ? Id() : open_dataset(name);
  const Id& dataset = in_chunks ? in_chunks : contiguous;
  const Id space{H5Dget_space(dataset.get()), H5Sclose};
  const Id selected = select_rows(space.get(), first, count);
  if (!selected || H5Dread(dataset.get(), memory, selected.get(), space.get(), H5P_DEFAULT, into) < 0)
    fail(ExitCode::kData, fmt::format("rows {} to {} of dataset {} cannot be read", first, first + count, name));
}

std::vector<std::string> File::read_texts(const std::string& name, uint64_t first, uint64_t count) const {
  const Id dataset = open_dataset(name);
  const Id type{H5Dget_type(dataset.get()), H5Tclose};
  if (H5Tis_variable_str(type.get()) <= 0) {
    const size_t width = H5Tget_size(type.get());
    std::string bytes(count * width, '\0');
    read_rows(name, first, count, type.get(), bytes.data());
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < count; ++i) texts.push_back(bytes.substr(i * width, width));
    return texts;
  }
  const hsize_t dims[1] = {count};
  const Id space{H5Screate_simple(1, dims, nullptr), H5Sclose};
  std::vector<char*> found(count, nullptr);
  read_rows(name, first, count, type.get(), found.data());
  std::vector<std::string> texts;
  for (const char* text : found) texts.emplace_back(text != nullptr ? text : "");
  H5Dvlen_reclaim(type.get(), space.get(), H5P_DEFAULT, found.data());
  return texts;
}

void File::flush() {
  if (H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) < 0) fail(ExitCode::kIo, "flush failed");
}

void File::close() {
  flush();
  if (!file_.close_now()) fail(ExitCode::kIo, "close failed");
}

}  // namespace lfm2::h5
