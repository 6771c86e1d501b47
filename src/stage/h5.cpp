// The HDF5 calls of the project, each checked. The library's own error stack is silenced and its deepest line put in
// our message.
#include "stage/h5.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "stage/h5_scan.h"

namespace lfm2::h5 {

namespace {

constexpr size_t kLongestText = size_t{1} << 20;  // of a text attribute

// The innermost record of the error stack: what really failed, "truncated file: eof = 7, sblock->base_addr = 0, …".
std::string library_message() {
  std::string text;
  const auto visit = [](unsigned, const H5E_error2_t* record, void* into) -> herr_t {
    *static_cast<std::string*>(into) = fmt::format("{} ({})", record->desc, record->func_name);
    return 1;  // walking upward starts at the innermost
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, visit, &text);
  H5Eclear2(H5E_DEFAULT);
  std::replace(text.begin(), text.end(), '\n', ' ');  // ctime() inside the library's text
  return text.empty() ? "HDF5 gave no reason" : text;
}

// Before any other call to the library. Its own clean-up at exit crashes where a write had failed (a full disk): every
// file is closed by its owner here, so nothing is left for it to do.
void silence_library() {
  H5dont_atexit();
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

std::string describe_type(hid_t type) {
  const size_t bits = H5Tget_size(type) * 8;
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return fmt::format("{}-bit float", bits);
    case H5T_INTEGER:
      return fmt::format("{}-bit integer", bits);
    case H5T_STRING:
      return "string";
    case H5T_COMPOUND:
      return "compound";
    default:
      return "another type";
  }
}

std::optional<DType> match_type(hid_t type) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF16, DType::kI32}) {
    const Id ours = file_type(dtype);
    if (H5Tequal(type, ours.get()) > 0) return dtype;
  }
  return std::nullopt;
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

File File::open(const std::filesystem::path& path) {
  silence_library();
  H5PLset_loading_state(0);  // filters are loadable code; files name them
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    throw Error(ExitCode::kNoInput, fmt::format("{}: open failed: {}", path.string(), std::strerror(ENOENT)));
  if (!std::filesystem::is_regular_file(status))
    throw Error(ExitCode::kData, fmt::format("{}: not a regular file", path.string()));
  Id id{H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose};
  if (!id) {
    const int system = errno;
    const std::string reason = library_message();
    const bool unreadable = system == EACCES && reason.find("ermission") != std::string::npos;
    throw Error(unreadable ? ExitCode::kIo : ExitCode::kData,
                fmt::format("{}: cannot be opened as HDF5: {}", path.string(), reason));
  }
  return File(path, std::move(id));
}

File File::open_scanned(const std::filesystem::path& path, const std::set<std::string>& datasets) {
  scan(CheckedFile(path), {.only = datasets});
  return open(path);
}

File File::create(const std::filesystem::path& path) {
  silence_library();
  const Id access{H5Pcreate(H5P_FILE_ACCESS), H5Pclose}, creation{H5Pcreate(H5P_FILE_CREATE), H5Pclose};
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V110, H5F_LIBVER_V110);
  H5Pset_alignment(access.get(), 4096, 4096);  // so that a loader can read with O_DIRECT and large pages
  H5Pset_obj_track_times(creation.get(), false);
  Id id{H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), H5Fclose};
  if (!id)
    throw Error(ExitCode::kCantCreate, fmt::format("{}: cannot be created: {}", path.string(), library_message()));
  return File(path, std::move(id));
}

std::vector<std::string> File::names() const {
  struct Visit {
    std::vector<std::string> names;
    std::string refused;
  } visit;
  const auto collect = [](hid_t, const char* name, const H5L_info_t* link, void* into) -> herr_t {
    auto& found = *static_cast<Visit*>(into);
    if (link->type != H5L_TYPE_HARD) {
      found.refused = name;
      return 1;
    }
    found.names.emplace_back(name);
    return 0;
  };
  if (H5Literate(file_.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &visit) < 0)
    fail(ExitCode::kData, "its list of datasets cannot be read");
  if (!visit.refused.empty())
    throw Error(ExitCode::kData, fmt::format("{}: \"{}\" is a soft or external link, expected only datasets",
                                             path_.string(), visit.refused));
  std::sort(visit.names.begin(), visit.names.end());
  return visit.names;
}

bool File::has(const std::string& name) const { return H5Lexists(file_.get(), name.c_str(), H5P_DEFAULT) > 0; }

Id File::open_dataset(const std::string& name) const {
  Id dataset{H5Dopen2(file_.get(), name.c_str(), H5P_DEFAULT), H5Dclose};
  if (!dataset) fail(ExitCode::kData, fmt::format("dataset {} cannot be opened", name));
  return dataset;
}

namespace {

// A filter of another's making would be code that HDF5 loads from a path.
bool own_filters_only(hid_t creation) {
  for (int i = 0; i < H5Pget_nfilters(creation); ++i) {
    unsigned flags = 0, config = 0;
    size_t values = 0;
    const H5Z_filter_t filter =
        H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &values, nullptr, 0, nullptr, &config);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32) return false;
  }
  return true;
}

}  // namespace

DatasetInfo File::info(const std::string& name) const {
  const Id dataset = open_dataset(name);
  const Id space{H5Dget_space(dataset.get()), H5Sclose}, type{H5Dget_type(dataset.get()), H5Tclose};
  const Id creation{H5Dget_create_plist(dataset.get()), H5Pclose};
  if (!space || !type || !creation) fail(ExitCode::kData, fmt::format("dataset {} has no readable header", name));
  DatasetInfo info;
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 0) fail(ExitCode::kData, fmt::format("dataset {} has no simple shape", name));
  std::vector<hsize_t> dims(static_cast<size_t>(rank));
  if (rank > 0) H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr);
  info.dims.assign(dims.begin(), dims.end());
  info.dtype = match_type(type.get());
  info.stored_type = describe_type(type.get());
  if (H5Pget_layout(creation.get()) == H5D_CONTIGUOUS && H5Pget_nfilters(creation.get()) == 0 &&
      H5Pget_external_count(creation.get()) == 0) {
    const haddr_t offset = H5Dget_offset(dataset.get());
    info.plain = offset != HADDR_UNDEF;
    info.offset = info.plain ? offset : 0;
    info.bytes = H5Dget_storage_size(dataset.get());
  }
  info.readable = info.plain || (H5Pget_layout(creation.get()) == H5D_CHUNKED &&
                                 H5Pget_external_count(creation.get()) == 0 && own_filters_only(creation.get()));
  H5Eclear2(H5E_DEFAULT);
  return info;
}

bool File::has_attribute(const std::string& name, const std::string& object) const {
  return H5Aexists_by_name(file_.get(), object.c_str(), name.c_str(), H5P_DEFAULT) > 0;
}

std::string File::text_attribute(const std::string& name, const std::string& object) const {
  const Id attribute{H5Aopen_by_name(file_.get(), object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  if (!attribute) fail(ExitCode::kData, fmt::format("attribute {} of {} is missing or unreadable", name, object));
  const Id type{H5Aget_type(attribute.get()), H5Tclose}, space{H5Aget_space(attribute.get()), H5Sclose};
  if (H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
      H5Sget_simple_extent_npoints(space.get()) != 1)
    throw Error(ExitCode::kData,
                fmt::format("{}: attribute {} of {} is no fixed-length text", path_.string(), name, object));
  if (H5Tget_size(type.get()) > kLongestText)
    throw Error(ExitCode::kData, fmt::format("{}: attribute {} of {} has {} bytes, expected at most {}", path_.string(),
                                             name, object, H5Tget_size(type.get()), kLongestText));
  std::string text(H5Tget_size(type.get()), '\0');
  if (H5Aread(attribute.get(), type.get(), text.data()) < 0)
    fail(ExitCode::kData, fmt::format("attribute {} of {} cannot be read", name, object));
  text.resize(std::strlen(text.c_str()));
  return text;
}

int64_t File::int_attribute(const std::string& name, const std::string& object) const {
  const Id attribute{H5Aopen_by_name(file_.get(), object.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose};
  if (!attribute) fail(ExitCode::kData, fmt::format("attribute {} of {} is missing or unreadable", name, object));
  const Id type{H5Aget_type(attribute.get()), H5Tclose}, space{H5Aget_space(attribute.get()), H5Sclose};
  if (H5Tget_class(type.get()) != H5T_INTEGER || H5Sget_simple_extent_npoints(space.get()) != 1)
    throw Error(ExitCode::kData, fmt::format("{}: attribute {} of {} is no integer", path_.string(), name, object));
  int64_t value = 0;
  if (H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0)
    fail(ExitCode::kData, fmt::format("attribute {} of {} cannot be read", name, object));
  return value;
}

void File::set_attribute(const std::string& name, const std::string& value, const std::string& object) {
  const Id type{H5Tcopy(H5T_C_S1), H5Tclose}, space{H5Screate(H5S_SCALAR), H5Sclose};
  H5Tset_size(type.get(), value.size() + 1);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  // By the object's id: HDF5 1.10 cannot write an attribute that was opened through the object's name.
  const Id owner{H5Oopen(file_.get(), object.c_str(), H5P_DEFAULT), H5Oclose};
  Id attribute;
  if (H5Aexists(owner.get(), name.c_str()) > 0) {  // one of the same length is overwritten in place
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

// Contiguous, allocated now, never filled, no time stamps.
Id make_dataset(hid_t file, const std::string& name, hid_t type, const std::vector<uint64_t>& dims) {
  const std::vector<hsize_t> extents(dims.begin(), dims.end());
  const Id space{H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose};
  const Id creation{H5Pcreate(H5P_DATASET_CREATE), H5Pclose};
  H5Pset_layout(creation.get(), H5D_CONTIGUOUS);
  H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(creation.get(), false);
  return {H5Dcreate2(file, name.c_str(), type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT), H5Dclose};
}

// Selects whole rows of the first axis in the file's space; returns the matching memory space.
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
  return offset == HADDR_UNDEF ? 0 : offset;  // undefined for a dataset without elements
}

void File::write_i64(const std::string& name, const std::vector<int64_t>& values) {
  const Id dataset = make_dataset(file_.get(), name, H5T_STD_I64LE, {values.size()});
  if (!dataset || H5Dwrite(dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
    fail(ExitCode::kIo, fmt::format("dataset {} cannot be written", name));
}

void File::read_rows(const std::string& name, uint64_t first, uint64_t count, hid_t memory, void* into) const {
  if (count == 0) return;
  const Id dataset = open_dataset(name);
  const Id space{H5Dget_space(dataset.get()), H5Sclose};
  const Id selected = select_rows(space.get(), first, count);
  if (!selected || H5Dread(dataset.get(), memory, selected.get(), space.get(), H5P_DEFAULT, into) < 0)
    fail(ExitCode::kData, fmt::format("rows {} to {} of dataset {} cannot be read", first, first + count, name));
}

std::vector<int64_t> File::read_i64(const std::string& name) const {
  const Id dataset = open_dataset(name);
  const Id space{H5Dget_space(dataset.get()), H5Sclose}, type{H5Dget_type(dataset.get()), H5Tclose};
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  if (H5Tget_class(type.get()) != H5T_INTEGER)
    throw Error(ExitCode::kData, fmt::format("{}: dataset {} holds {}, expected integers", path_.string(), name,
                                             describe_type(type.get())));
  if (count < 0 || count >= (hssize_t{1} << 31))
    throw Error(ExitCode::kData,
                fmt::format("{}: dataset {} has {} elements, expected fewer than 2^31", path_.string(), name, count));
  std::vector<int64_t> values(static_cast<size_t>(count));
  if (count > 0 && H5Dread(dataset.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
    fail(ExitCode::kData, fmt::format("dataset {} cannot be read", name));
  return values;
}

void File::flush() {
  if (H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) < 0) fail(ExitCode::kIo, "flush failed");
}

void File::close() {
  flush();
  if (!file_.close_now()) fail(ExitCode::kIo, "close failed");
}

}  // namespace lfm2::h5
