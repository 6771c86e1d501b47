#include "serve/batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <span>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/standard_streams.h"
#include "serve/batches/batch_requests.h"

namespace lfm2::serve {

namespace {

constexpr std::chrono::milliseconds kTick{50}, kTickOfDownloads{2};
constexpr std::chrono::seconds kExpiryInterval{1};
constexpr size_t kMaxAsked = 256, kPieceBytes = 64 << 10;
constexpr std::string_view kFiles = "/v1/files", kBatches = "/v1/batches";
constexpr int64_t kUsualFiles = 10000, kUsualBatches = 20;
constexpr std::string_view kFull = "the folder of files and batches, or your share of it, is full: delete files first";

http::Response object_answer(const OrderedJson& body) {
  return {.content_type = "application/json", .body = json_text(body)};
}

http::Response refuse(int status, std::string_view why) { return http::error_response(status, why); }

}  // namespace

Batches::Batches(BatchSettings settings, LiveRequests& live) : settings_(std::move(settings)) {
  if (settings_.store == nullptr) return;
  runner_ = std::make_unique<BatchRunner>(settings_, live, [this] {
    const std::lock_guard lock(mutex_);
    open_.any_ended = true;
    any_.notify_one();
  });
  thread_ = std::thread([this] { run(); });
}

void Batches::end() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    open_.ends = true;
    any_.notify_one();
  }
  thread_.join();
  for (const Asked& one : open_.asked) one.responder.answer(refuse(503, "the server is ending"));
  open_.asked.clear();
  downloads_.clear();
}

void Batches::add_routes(http::Router& router, const std::function<void(const http::Request&)>& log) {
  const auto add = [&](const char* method, std::string_view path) {
    router.add(method, path, [this, log](http::Request&& request, const http::Responder& responder) {
      log(request);
      queue(std::move(request), responder);
    });
  };
  for (const std::string_view path : {kFiles, kBatches}) {
    for (const char* method : {"GET", "POST"}) add(method, path);
    for (const char* method : {"GET", "POST", "DELETE"}) add(method, fmt::format("{}/*", path));
  }
}

// On the server's thread.
void Batches::queue(http::Request&& request, const http::Responder& responder) {
  if (settings_.store == nullptr) {
    responder.answer(
        refuse(404, fmt::format("There is no {}: the server was started without --batch-dir.", request.path)));
    return;
  }
  const std::lock_guard lock(mutex_);
  if (open_.ends) {
    responder.answer(refuse(503, "the server is ending"));
  } else if (open_.asked.size() >= kMaxAsked) {
    responder.answer(http::error_response(429, "too many requests wait already", {{"Retry-After", "1"}}));
  } else {
    open_.asked.push_back({std::move(request), responder});
    any_.notify_one();
  }
}

void Batches::run() {
  std::chrono::steady_clock::time_point expired{};
  for (bool more = false;;) {
    std::deque<Asked> asked;
    {
      std::unique_lock lock(mutex_);
      any_.wait_for(lock, downloads_.empty() ? kTick : kTickOfDownloads,
                    [&] { return more || open_.ends || open_.any_ended || !open_.asked.empty(); });
      if (open_.ends) break;
      open_.any_ended = false;
      asked.swap(open_.asked);
    }
    for (const Asked& one : asked) answer(one);
    send_downloads();
    try {
      more = runner_->poll();
      if (const auto now = std::chrono::steady_clock::now(); now - expired >= kExpiryInterval) {
        expired = now;
        settings_.store->remove_expired();
      }
    } catch (const std::exception& error) {  // as no memory: the next look may succeed
      more = false;
      say(fmt::format("lfm2_stage: batches wait: {}", error.what()));
    }
  }
  runner_->withdraw();
}

std::string Batches::owner_of(const http::Request& request) const {
  const std::string* field = settings_.has_keys ? request.headers.find("Authorization") : nullptr;
  if (field == nullptr) return "";
  const size_t space = std::min(field->find(' '), field->size());
  return checksum_of(std::string_view(*field).substr(std::min(field->find_first_not_of(' ', space), field->size())));
}

void Batches::answer(const Asked& asked) {
  http::Response response;
  try {
    const bool files = asked.request.path.starts_with(kFiles);
    response = files ? answer_files(asked.request, asked.responder) : answer_batches(asked.request);
  } catch (const Error& error) {
    const bool of_client = error.code() == ExitCode::kData;
    if (!of_client) say(fmt::format("lfm2_stage: {}: {}", asked.request.path, error.what()));
    response =
        refuse(of_client ? 400 : 500, of_client ? error.what() : "the server cannot store this: its disk may be full");
  } catch (const std::exception& error) {
    response = refuse(500, error.what());
  }
  if (response.status != 0) asked.responder.answer(response);
}

http::Response Batches::answer_files(const http::Request& request, const http::Responder& responder) {
  if (request.path == kFiles)
    return request.method == "POST" ? upload(request) : list(request, settings_.store->files(), kUsualFiles);
  std::string_view id = std::string_view(request.path).substr(kFiles.size() + 1);
  constexpr std::string_view kContent = "/content";
  const bool content = id.ends_with(kContent);
  if (content) id.remove_suffix(kContent.size());
  BatchStore::Stored* const file = BatchStore::find(settings_.store->files(), id, owner_of(request));
  if (file == nullptr) return refuse(404, fmt::format("There is no file {}.", id));
  if (request.method == "POST" || (content && request.method == "DELETE"))
    return refuse(405, fmt::format("{} is not allowed for {}.", request.method, request.path));
  if (request.method == "DELETE") return remove(*file);
  if (!content) return object_answer(file->object);
  download(*file, responder);
  return {.status = 0};
}

http::Response Batches::answer_batches(const http::Request& request) {
  if (request.path == kBatches)
    return request.method == "POST" ? create(request) : list(request, settings_.store->batches(), kUsualBatches);
  std::string_view id = std::string_view(request.path).substr(kBatches.size() + 1);
  constexpr std::string_view kCancel = "/cancel";
  const bool cancels = id.ends_with(kCancel);
  if (cancels) id.remove_suffix(kCancel.size());
  BatchStore::Stored* const batch = BatchStore::find(settings_.store->batches(), id, owner_of(request));
  if (batch == nullptr) return refuse(404, fmt::format("There is no batch {}.", id));
  if (request.method == "DELETE" || cancels != (request.method == "POST"))
    return refuse(405, fmt::format("{} is not allowed for {}.", request.method, request.path));
  return cancels ? cancel(*batch) : object_answer(runner_->object(*batch));
}

http::Response Batches::upload(const http::Request& request) {
  const std::string owner = owner_of(request);
  const Upload file = read_upload(request);
  if (!settings_.store->has_room(owner, file.content.size())) return refuse(413, kFull);
  return object_answer(
      settings_.store->add_file(BatchStore::new_id("file-"), owner, file.name, "batch", file.content, file.lifetime)
          .object);
}

http::Response Batches::create(const http::Request& request) {
  const OrderedJson asked = read_batch(request.body);
  const std::string owner = owner_of(request), input = asked.at("input_file_id");
  const BatchStore::Stored* file = BatchStore::find(settings_.store->files(), input, owner);
  if (file == nullptr || file->object.at("purpose") != "batch")
    throw Error(ExitCode::kData, fmt::format("request: \"input_file_id\" is \"{}\", expected a file with the purpose "
                                             "\"batch\"",
                                             input));
  if (!settings_.store->has_room(owner, 0)) return refuse(413, kFull);
  OrderedJson batch{{"id", BatchStore::new_id("batch_")},
                    {"object", "batch"},
                    {"endpoint", asked.at("endpoint")},
                    {"model", settings_.context.facts.model},
                    {"errors", nullptr},
                    {"input_file_id", input},
                    {"completion_window", asked.at("completion_window")},
                    {"status", "validating"},
                    {"output_file_id", nullptr},
                    {"error_file_id", nullptr},
                    {"created_at", std::time(nullptr)}};
  for (const char* time : {"in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
                           "cancelling_at", "cancelled_at"})
    batch[time] = nullptr;
  batch["request_counts"] = {{"total", 0}, {"completed", 0}, {"failed", 0}};
  batch["metadata"] = asked.at("metadata");
  batch["output_expires_after"] = asked.at("output_expires_after");
  const std::string id = batch["id"];
  settings_.store->save_batch(owner, batch);
  runner_->begin(id);
  return object_answer(batch);
}

http::Response Batches::cancel(BatchStore::Stored& batch) {
  const std::string id = batch.object.at("id");
  if (is_over(batch.object))
    return refuse(409, fmt::format("{} is {} already", id, batch.object.at("status").get<std::string>()));
  runner_->cancel(id);
  return object_answer(runner_->object(batch));
}

http::Response Batches::remove(const BatchStore::Stored& file) {
  const std::string id = file.object.at("id");
  if (const std::string batch = settings_.store->user_of(id); !batch.empty())
    return refuse(409, fmt::format("{} is the input of {}, which has not ended", id, batch));
  settings_.store->remove_file(id);
  return object_answer({{"id", id}, {"object", "file"}, {"deleted", true}});
}

// The newest first, unless the order is "asc".
http::Response Batches::list(const http::Request& request, BatchStore::ById& all, int64_t usual) {
  const std::string owner = owner_of(request);
  const ListQuery asked = read_list_query(request.query, usual);
  std::vector<const BatchStore::Stored*> own;
  for (const auto& [id, stored] : all)
    if (stored.owner == owner && (!asked.purpose || stored.object.value("purpose", "") == *asked.purpose))
      own.push_back(&stored);
  std::ranges::stable_sort(own, [&](const auto* a, const auto* b) {
    const int64_t first = a->object.at("created_at"), second = b->object.at("created_at");
    return asked.ascends ? first < second : first > second;
  });
  auto begin = own.begin();
  if (asked.after) {
    begin = std::ranges::find_if(own, [&](const auto* one) { return one->object.at("id") == *asked.after; });
    if (begin == own.end()) return refuse(404, fmt::format("There is no {} in this list.", *asked.after));
    ++begin;
  }
  OrderedJson data = OrderedJson::array();
  for (; begin != own.end() && std::ssize(data) < asked.limit; ++begin) data.push_back(runner_->object(**begin));
  OrderedJson answer{{"object", "list"}, {"data", data}, {"has_more", begin != own.end()}};
  answer["first_id"] = data.empty() ? OrderedJson() : data.front().at("id");
  answer["last_id"] = data.empty() ? OrderedJson() : data.back().at("id");
  return object_answer(answer);
}

void Batches::download(const BatchStore::Stored& file, const http::Responder& responder) {
  const std::string id = file.object.at("id");
  CheckedFile content(settings_.store->path(id, ".data"));
  if (responder.begin_stream(200, "application/octet-stream")) downloads_.push_back({responder, std::move(content)});
}

// As much as each client reads, so that a file is never in memory as a whole.
void Batches::send_downloads() {
  std::string piece;
  std::erase_if(downloads_, [&](Download& one) {
    try {
      while (one.sent < one.file.size() && !one.responder.behind()) {
        piece.resize(std::min<uint64_t>(kPieceBytes, one.file.size() - one.sent));
        one.file.read(one.sent, std::as_writable_bytes(std::span(piece)));
        if (!one.responder.write(piece)) return true;
        one.sent += piece.size();
      }
    } catch (const std::exception& error) {  // the stream is cut off
      say(fmt::format("lfm2_stage: {}", error.what()));
      return true;
    }
    if (one.sent < one.file.size()) return one.responder.gone();
    one.responder.end();
    return true;
  });
}

}  // namespace lfm2::serve
