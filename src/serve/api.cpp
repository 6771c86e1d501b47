#include "serve/api.h"

#include <fmt/format.h>

#include <ctime>
#include <exception>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/json/json.h"
#include "openai/responses/responses_builder.h"
#include "openai/responses/responses_request.h"
#include "serve/page/page.h"
#include "text/text_model.h"

namespace lfm2::serve {

namespace {

// Larger bodies are read by a separate thread, so that other requests do not wait for them.
constexpr size_t kLargeBody = 256 << 10;
constexpr size_t kMaxLoggedBytes = 64 << 10;  // of a body

http::Response busy_answer(bool draining) {
  return draining ? http::error_response(503, "the server is ending", {{"Retry-After", "30"}})
                  : http::error_response(429, "too many requests wait already", {{"Retry-After", "1"}});
}

// Below 2^53, so that every JSON client can represent it.
uint64_t fresh_seed() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) >> 11;
}

ApiSettings with_stop(ApiSettings settings, const std::atomic<bool>& stop) {
  settings.lines.stop = settings.batches.context.lines.stop = &stop;
  return settings;
}

http::Response json_answer(std::string body) { return {.content_type = "application/json", .body = std::move(body)}; }

http::Response json_or_404(std::optional<std::string> body, std::string_view otherwise) {
  return body ? json_answer(std::move(*body)) : http::error_response(404, otherwise);
}

}  // namespace

Api::Api(ApiSettings settings, LiveRequests& live, Listener& listener)
    : settings_(with_stop(std::move(settings), open_.reading_ends)),
      live_(live),
      metrics_(live.metrics()),
      listener_(listener),
      answer_tokens_(settings_.lines.text != nullptr ? answer_tokens(settings_.lines.text->tokenizer())
                                                     : AnswerTokens{}),
      model_({.name = settings_.model_name,
              .version = settings_.version,
              .eos_tokens = settings_.defaults.of_text.eos_tokens,
              .max_length = settings_.limits.max_prompt_tokens,
              .lines = settings_.lines,
              .max_answer_bytes = http::Limits{}.max_answer_bytes}) {
  workers_.batches = std::make_unique<Batches>(settings_.batches, live_);
  add_routes();
  workers_.reader = std::thread([this] { read_bodies(open_.unread); });
  workers_.reader_of_large = std::thread([this] { read_bodies(open_.unread_large); });
  workers_.writer_of_large = std::thread([this] { write_large_answers(); });
  workers_.writer = std::thread([this] { write_answers(); });
  listener_.serve(router_);
}

Api::~Api() {
  const auto end = [this](auto& ends, std::condition_variable& waiting) {
    const std::lock_guard lock(mutex_);
    ends = true;
    waiting.notify_all();
  };
  end(open_.reading_ends, any_unread_);
  workers_.reader.join();
  workers_.reader_of_large.join();
  workers_.batches->end();
  refuse_unread();
  end(open_.writing_ends, any_large_);  // only now, when no answer can begin any more
  workers_.writer.join();
  end(open_.large_end, any_large_);
  workers_.writer_of_large.join();
  listener_.close();
}

// Refuses the bodies that were not read until the end; nothing is added to these queues any more. While a body is
// queued its client waits, and the listener waits for its clients.
void Api::refuse_unread() {
  for (const std::deque<Unread>* unread : {&open_.unread, &open_.unread_large})
    for (const Unread& one : *unread) {
      ++metrics_.requests_refused;
      one.responder.answer(busy_answer(true));
    }
}

void Api::add_routes() {
  const auto now = [this](std::string_view path, auto make) {
    router_.add("GET", path, [make](http::Request&& request, const http::Responder& responder) {
      responder.answer(make(request.path));
    });
  };
  add_page(router_);
  now("/health",
      [this](const std::string&) { return live_.draining() ? busy_answer(true) : json_answer(R"({"status":"ok"})"); });
  now("/metrics", [this](const std::string&) { return figures(); });
  now("/v1/models", [this](const std::string&) { return json_answer(model_.models()); });
  now("/tokenizer_info",
      [this](const std::string&) { return json_or_404(model_.tokenizer_info(), settings_.lines.text_error); });
  now("/version", [this](const std::string&) { return json_answer(model_.version()); });
  now("/v1/models/*", [this](const std::string& path) {
    const std::string name = http::decoded(path).substr(std::string_view("/v1/models/").size());
    return json_or_404(model_.model(name), "There is no such model.");
  });
  for (const char* method : {"GET", "POST", "DELETE"})
    router_.add(method, "/v1/responses/*", [](http::Request&& request, const http::Responder& responder) {
      responder.answer(
          http::error_response(404, fmt::format("There is no {}: responses are not stored.", request.path)));
    });
  for (const auto& [path, kind] : {std::pair{"/v1/completions", Kind::kCompletion},
                                   {"/v1/chat/completions", Kind::kChat},
                                   {"/v1/responses", Kind::kResponses},
                                   {"/v1/embeddings", Kind::kEmbeddings},
                                   {"/tokenize", Kind::kTokenize},
                                   {"/detokenize", Kind::kDetokenize}})
    router_.add("POST", path, [this, kind = kind](http::Request&& request, http::Responder responder) {
      queue(kind, std::move(request), std::move(responder));
    });
  workers_.batches->add_routes(router_, [this](const http::Request& request) { log_body(request); });
}

http::Response Api::figures() const {
  const LogWriter* log = listener_.log();
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .body = metrics_.text({.running = live_.running_by_replica(),
                                 .waiting = live_.waiting(),
                                 .connections = static_cast<int64_t>(listener_.counts().connections),
                                 .dropped_lines = static_cast<int64_t>(log != nullptr ? log->dropped() : 0)})};
}

// On the server's thread.
void Api::queue(Kind kind, http::Request&& request, http::Responder responder) {
  bool ends = live_.draining();
  if (!ends) {
    const std::lock_guard lock(mutex_);
    ends = open_.reading_ends;
    if (!ends && std::ssize(open_.unread) + std::ssize(open_.unread_large) < settings_.max_queue) {
      std::deque<Unread>& unread = request.body.size() > kLargeBody ? open_.unread_large : open_.unread;
      unread.push_back({kind, std::move(request), std::move(responder)});
      any_unread_.notify_all();
      return;
    }
  }
  ++metrics_.requests_refused;
  responder.answer(busy_answer(ends));
}

void Api::read_bodies(std::deque<Unread>& unread) {
  while (true) {
    std::unique_lock lock(mutex_);
    any_unread_.wait(lock, [&] { return open_.reading_ends || !unread.empty(); });
    if (open_.reading_ends) return;
    const Unread one = std::move(unread.front());
    unread.pop_front();
    lock.unlock();
    if (one.responder.gone())
      ++metrics_.requests_aborted;
    else
      read(one);
  }
}

void Api::log_body(const http::Request& request) const {
  if (!settings_.log_requests || listener_.log() == nullptr) return;
  listener_.log()->write(without_controls(json_text(OrderedJson{{"id", request.id},
                                                                {"path", request.path},
                                                                {"body_bytes", request.body.size()},
                                                                {"body", request.body.substr(0, kMaxLoggedBytes)}})));
}

void Api::read(const Unread& unread) {
  log_body(unread.request);
  try {
    switch (unread.kind) {
      case Kind::kTokenize:
        unread.responder.answer(json_answer(model_.tokenize(unread.request.body)));
        break;
      case Kind::kDetokenize:
        unread.responder.answer(json_answer(model_.detokenize(unread.request.body)));
        break;
      case Kind::kEmbeddings:
        begin_embeddings(unread);
        break;
      default:
        begin(unread);
    }
  } catch (const std::exception& error) {
    if (const auto* own = dynamic_cast<const Error*>(&error); own != nullptr && own->code() == ExitCode::kStopped) {
      ++metrics_.requests_refused;
      unread.responder.answer(busy_answer(true));
      return;
    }
    ++metrics_.requests_failed;
    const TextModel* model = settings_.lines.text;
    const std::string text = model != nullptr ? model->without_folder(words_of(error)) : words_of(error);
    unread.responder.answer(http::error_response(status_of(error), text));
  }
}

void Api::begin(const Unread& unread) {
  LineContext lines = settings_.lines;
  const std::time_t now = std::time(nullptr);
  lines.now = now;
  const std::string& body = unread.request.body;
  const auto seed = settings_.fresh_seeds ? std::optional(fresh_seed()) : std::nullopt;
  OpenAiRequest request =
      unread.kind == Kind::kResponses
          ? parse_responses_request(body, lines, settings_.defaults, settings_.limits, seed)
          : parse_openai_request(body, unread.kind == Kind::kChat, lines, settings_.defaults, settings_.limits, seed);
  if (request.fresh_seed) unread.responder.note_seed(*request.fresh_seed);
  const int32_t first = live_.reserve(static_cast<int32_t>(request.requests.size()));
  ResponseFacts facts{settings_.model_name, static_cast<int64_t>(now),
                      lines.text != nullptr ? &lines.text->tokenizer() : nullptr, answer_tokens_};
  auto builder = make_builder(request, fmt::format("{:x}-{}", model_.started(), first), std::move(facts),
                              settings_.limits.max_scored);
  submit(unread, first, std::move(builder), std::move(request.requests));
}

void Api::begin_embeddings(const Unread& unread) {
  EmbeddingsRequest request =
      parse_embeddings_request(unread.request.body, settings_.lines, settings_.embeddings, settings_.limits);
  const int32_t first = live_.reserve(static_cast<int32_t>(request.requests.size()));
  auto builder = std::make_unique<EmbeddingsBuilder>(request, settings_.model_name);
  submit(unread, first, std::move(builder), std::move(request.requests));
}

void Api::submit(const Unread& unread, int32_t first, std::unique_ptr<ResponseBuilder> builder,
                 std::vector<Request> requests) {
  for (size_t i = 0; i < requests.size(); ++i) requests[i].sample = first + static_cast<int32_t>(i);
  auto response = std::make_shared<PendingResponse>(std::move(builder), first, static_cast<int32_t>(requests.size()),
                                                    unread.responder, Clock::now() + settings_.request_timeout);
  {
    const std::lock_guard lock(mutex_);
    open_.responses[first] = std::move(response);
  }
  const LiveRequests::Added added = live_.add(std::move(requests));
  if (added != LiveRequests::Added::kYes) {
    forget(first);
    ++metrics_.requests_refused;
    unread.responder.answer(busy_answer(added == LiveRequests::Added::kDraining));
    return;
  }
  unread.responder.on_gone([this, first](http::Gone) {
    const std::lock_guard lock(mutex_);
    open_.gone.push_back(first);
  });
}

}  // namespace lfm2::serve
