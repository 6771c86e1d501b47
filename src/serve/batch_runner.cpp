#include "serve/batch_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/standard_streams.h"

namespace lfm2::serve {

namespace {

constexpr std::chrono::seconds kSyncInterval{5};
// A batch for which there is no memory begins again, as others may free some, and fails after this number of times.
constexpr std::chrono::seconds kMemoryInterval{2};
constexpr int kMaxWithoutMemory = 30;
// A client that waits longer gets the place of a line, and after each interval of more lines.
constexpr std::chrono::milliseconds kPatience{250}, kYieldInterval{50};

OrderedJson error_list(std::string_view code, std::string_view message) {
  return {
      {"object", "list"},
      {"data", OrderedJson::array({{{"code", code}, {"line", nullptr}, {"message", message}, {"param", nullptr}}})}};
}

}  // namespace

BatchRunner::BatchRunner(const BatchSettings& settings, LiveRequests& live, std::function<void()> wake)
    : settings_(settings), live_(live), wake_(std::move(wake)) {
  std::vector<std::pair<int64_t, std::string>> begun;
  for (const auto& [id, batch] : settings_.store->batches()) {
    if (is_over(batch.object))
      settings_.store->remove(id, ".journal");
    else
      begun.emplace_back(batch.object.at("created_at").get<int64_t>(), id);
  }
  std::ranges::sort(begun);
  for (const auto& [created, id] : begun) begin(id);
}

BatchRunner::Batch* BatchRunner::find(const std::string& id) {
  const auto found = std::ranges::find(batches_, id, &Batch::id);
  return found != batches_.end() ? &*found : nullptr;
}

// A batch that cannot continue fails, and the server serves the others.
void BatchRunner::guard(const std::string& id, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    const bool has_memory = dynamic_cast<const std::bad_alloc*>(&error) == nullptr;
    if (!has_memory && begins_again(id)) return;
    const auto* own = dynamic_cast<const Error*>(&error);
    if (own != nullptr && own->code() == ExitCode::kStopped) return;  // the next server reads the line again
    const bool of_input = own != nullptr && own->code() == ExitCode::kData;
    say(fmt::format("lfm2_stage: {} fails: {}", id, error.what()));
    // The paths of the server are not for clients.
    const std::string why = of_input      ? error.what()
                            : !has_memory ? "the server has no memory for the batch"
                                          : "the server cannot store the batch: its disk may be full";
    end(id, "failed", error_list(of_input ? "invalid_file" : "server_error", why));
  }
}

// After there was no memory for a batch: forgets what it has begun, which its journal does not list. False if the batch
// is being cancelled, or after kMaxWithoutMemory times in a row.
bool BatchRunner::begins_again(const std::string& id) {
  Batch* const batch = find(id);
  if (batch == nullptr || ++batch->without_memory > kMaxWithoutMemory) return false;
  if (settings_.store->batches().find(id)->second.object.at("status") == "cancelling") return false;
  say(fmt::format("lfm2_stage: {} waits for memory", id));
  drop_lines(id);
  batch->run.reset();
  batch->read = false;
  batch->waits_until = Clock::now() + kMemoryInterval;
  return true;
}

// Adds these fields to the object of the batch.
void BatchRunner::set(const std::string& id, const OrderedJson& fields) {
  BatchStore::Stored changed = settings_.store->batches().find(id)->second;
  changed.object = object(changed);
  changed.object.update(fields);
  settings_.store->save_batch(changed.owner, changed.object);
}

void BatchRunner::begin(const std::string& id) {
  const OrderedJson object = settings_.store->batches().find(id)->second.object;
  const std::string status = object.at("status");
  if (status == "cancelling") return end(id, "cancelled");
  if (status == "finalizing") return end(id, "completed");
  batches_.push_back({.id = id});
  if (status == "in_progress") open(batches_.back());
}

// The turn of a batch begins. Afterwards it is gone if it has failed.
void BatchRunner::open(Batch& batch) {
  const std::string id = batch.id;
  const OrderedJson object = settings_.store->batches().find(id)->second.object;
  guard(id, [&] {
    batch.run = std::make_unique<BatchRun>(*settings_.store, id, object.at("input_file_id").get<std::string>(),
                                           settings_.made_by);
    auto context = std::make_shared<BatchContext>(settings_.context);
    context->endpoint = object.at("endpoint").get<std::string>();
    context->lines.embeddings = context->endpoint == "/v1/embeddings";
    context->lines.continues = !context->lines.embeddings;
    context->lines.now = context->facts.created = object.at("created_at").get<std::time_t>();
    batch.context = std::move(context);
    if (batch.run->is_of_another_server() && !batch.run->all_answered())
      return end(id, "failed",
                 error_list("server_error",
                            "the server started again with other weights or options, which answer the lines that are "
                            "left differently: create a batch of these lines"));
    if (object.at("status") == "validating")
      set(id, {{"status", "in_progress"}, {"in_progress_at", std::time(nullptr)}});
  });
}

void BatchRunner::cancel(const std::string& id) {
  write_ended();
  guard(id, [&] {
    if (const Batch* batch = find(id); batch != nullptr && batch->run != nullptr) batch->run->sync();
    set(id, {{"status", "cancelling"}, {"cancelling_at", std::time(nullptr)}});
    end(id, "cancelled");
  });
}

void BatchRunner::drop_lines(const std::string& id) {
  take_back([&](const Open& one) { return one.batch == id; }, SIZE_MAX);
  std::erase_if(again_, [&](const Open& one) { return one.batch == id; });
}

// The answers that the batch has become files.
void BatchRunner::end(const std::string& id, const char* status, const OrderedJson& errors) {
  drop_lines(id);
  BatchStore::Stored& batch = settings_.store->batches().find(id)->second;
  const Batch* const running = find(id);
  OrderedJson object = this->object(batch);
  object["status"] = status;
  object[fmt::format("{}_at", status)] = std::time(nullptr);
  object["errors"] = errors;
  try {
    if (running != nullptr && running->run != nullptr) running->run->sync();
    BatchRun::publish(*settings_.store, batch.owner, object);
    settings_.store->save_batch(batch.owner, object);
    settings_.store->remove(id, ".journal");
  } catch (const std::exception& error) {  // the next server ends it again
    say(fmt::format("lfm2_stage: {} cannot be ended on disk: {}", id, error.what()));
    if (std::string_view(status) != "failed") object["errors"] = error_list("server_error", "its end is not on disk");
    batch.object = object;
  }
  std::erase_if(batches_, [&](const Batch& one) { return one.id == id; });
}

// The newest of these lines begin again later.
void BatchRunner::take_back(const std::function<bool(const Open&)>& which, size_t most) {
  std::vector<std::pair<int32_t, Open>> taken;
  {
    const std::lock_guard lock(open_.mutex);
    for (auto at = open_.lines.end(); at != open_.lines.begin() && taken.size() < most;) {
      --at;
      if (!which(at->second)) continue;
      open_.sequences -= at->second.line->size();
      taken.emplace_back(at->first, std::move(at->second));
      at = open_.lines.erase(at);
    }
  }
  for (auto& [first, open] : taken) {
    for (int32_t i = 0; i < open.line->size(); ++i) live_.cancel(first + i);
    again_.push_front(std::move(open));
  }
}

// A quarter of the open lines makes room for clients.
void BatchRunner::yield() {
  if (Clock::now() - yielded_ < kYieldInterval) return;
  yielded_ = Clock::now();
  size_t lines = 0;
  {
    const std::lock_guard lock(open_.mutex);
    lines = open_.lines.size();
  }
  take_back([](const Open&) { return true; }, (lines + 3) / 4);
}

void BatchRunner::withdraw() {
  take_back([](const Open&) { return true; }, SIZE_MAX);
}

bool BatchRunner::drawn(const Drawn& token) {
  bool ended = false;
  {
    const std::lock_guard lock(open_.mutex);
    const auto next = open_.lines.upper_bound(token.sample);
    if (next == open_.lines.begin()) return false;
    const auto found = std::prev(next);
    BatchLine& line = *found->second.line;
    if (token.sample >= found->first + line.size()) return false;
    line.add(static_cast<size_t>(token.sample - found->first), token.token);
    ended = line.done();
    if (ended) {
      open_.sequences -= line.size();
      open_.ended.push_back(std::move(found->second));
      open_.lines.erase(found);
    }
  }
  if (ended) wake_();
  return true;
}

void BatchRunner::write(const Open& ended) {
  Batch* const batch = find(ended.batch);
  if (batch == nullptr || batch->run == nullptr) return;  // it was cancelled meanwhile, or begins again
  guard(ended.batch, [&] {
    const BatchLine::Answer answer = ended.line->answer();
    batch->run->write(ended.line->sample(), answer.failed, answer.text);
    batch->without_memory = 0;
  });
}

void BatchRunner::write_ended() {
  std::vector<Open> ended;
  {
    const std::lock_guard lock(open_.mutex);
    ended.swap(open_.ended);
  }
  for (const Open& one : ended) write(one);
}

// Begins a line, unless too many are open. Returns whether there may be another one.
bool BatchRunner::begin_line(Open line) {
  const int32_t count = line.line->size();
  {
    const std::lock_guard lock(open_.mutex);
    if (open_.sequences > 0 && open_.sequences + count > settings_.max_open) {
      again_.push_front(std::move(line));
      return false;
    }
  }
  const int32_t first = live_.reserve(count);
  std::vector<Request> requests = line.line->begin(first);
  {
    const std::lock_guard lock(open_.mutex);
    open_.lines.emplace(first, std::move(line));
    open_.sequences += count;
  }
  if (live_.add_in_background(std::move(requests))) return true;
  withdraw();
  return false;
}

bool BatchRunner::begin_line() {
  if (!again_.empty()) {
    Open line = std::move(again_.front());
    again_.pop_front();
    bool more = true;
    guard(std::string(line.batch), [&] { more = begin_line(std::move(line)); });
    return more;
  }
  for (Batch& batch : batches_) {
    if (batch.read || batch.waits_until > Clock::now()) continue;
    if (batch.run == nullptr) {
      open(batch);
      return true;
    }
    bool more = true;
    guard(std::string(batch.id), [&] { more = begin_line(batch); });
    return more;
  }
  return false;
}

bool BatchRunner::begin_line(Batch& batch) {
  const std::optional<BatchRun::Next> next = batch.run->next();
  batch.read = !next;
  if (!next) return true;
  Open line{batch.id, std::make_unique<BatchLine>(batch.context, next->sample, next->where, next->text)};
  if (line.line->size() > 0) return begin_line(std::move(line));
  write(line);  // it is refused
  return true;
}

bool BatchRunner::poll() {
  write_ended();
  if (live_.draining()) {
    withdraw();
    return false;
  }
  end_answered();
  if (Clock::now() - synced_ >= kSyncInterval) sync();
  if (live_.client_waits_longer_than(kPatience)) {
    yield();
    return false;
  }
  const auto has_room = [&] {
    const std::lock_guard lock(open_.mutex);
    return open_.sequences < settings_.max_open;
  };
  // Not all at once, so that answers and clients of the store do not wait for the reading of lines.
  constexpr int kLines = 32;
  int lines = 0;
  while (lines < kLines && has_room() && begin_line()) ++lines;
  return lines == kLines;
}

void BatchRunner::end_answered() {
  std::vector<std::string> whole;
  for (const Batch& batch : batches_)
    if (batch.run != nullptr && batch.run->all_answered()) whole.push_back(batch.id);
  for (const std::string& id : whole)
    guard(id, [&] {
      find(id)->run->sync();
      set(id, {{"status", "finalizing"}, {"finalizing_at", std::time(nullptr)}});
      end(id, "completed");
    });
}

void BatchRunner::sync() {
  synced_ = Clock::now();
  std::vector<std::string> running;
  for (const Batch& batch : batches_)
    if (batch.run != nullptr) running.push_back(batch.id);
  for (const std::string& id : running) guard(id, [&] { find(id)->run->sync(); });
}

OrderedJson BatchRunner::object(const BatchStore::Stored& batch) const {
  OrderedJson object = batch.object;
  const auto running = std::ranges::find(batches_, object.at("id").get<std::string>(), &Batch::id);
  if (running != batches_.end() && running->run != nullptr) object["request_counts"] = running->run->counts();
  return object;
}

}  // namespace lfm2::serve
