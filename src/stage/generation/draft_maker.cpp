// A block of drafts is a batch of sequences with one token each. Every row reads to the end of its block, since the
// attention reads by positions and the keys of the whole block are in the cache by then.
#include "stage/generation/draft_maker.h"

#include <algorithm>

#include "stage/model/memory_plan.h"

namespace lfm2 {

namespace {

// As in step_runner.cpp: lengths are rounded up, and a shape is recorded once it is frequent.
constexpr int64_t kDraftLengthStep = 1024, kDraftRecordedTime = 4;
constexpr size_t kMaxDraftRecordings = 64;

BatchSizes sizes_of_rows(int64_t rows, int64_t table_width) {
  BatchSizes sizes;
  sizes.positions = sizes.sequence_of = rows;
  sizes.offsets = rows + 1;
  sizes.states = 2 * rows;
  sizes.page_table = rows * table_width;
  return sizes;
}

Dspark::Room shapes_of(const DsparkConfig& config, const DraftRoom& room, DType compute) {
  return {.residual = Tensor(nullptr, compute, {room.rows(), config.blocks.hidden}),
          .logits = Tensor(nullptr, DType::kF32, {room.drafts() * room.texts_in_pass(), config.blocks.vocab}),
          .before = Tensor(nullptr, compute, {room.texts_in_pass(), config.markov_rank}),
          .log_probs = Tensor(nullptr, DType::kF32, {room.texts_in_pass(), 1})};
}

LayerRange all_layers(const DsparkConfig& config) { return {.first = 0, .count = config.layers()}; }

}  // namespace

DraftRoom::DraftRoom(const DsparkConfig& config, const DraftMakerSizes& sizes)
    : sizes_(sizes),
      block_size_(config.block_size),
      texts_in_pass_(std::min(sizes.texts, std::max<int64_t>(1, kHeadRows / config.block_size))) {}

// Of the arrays of both batches of a pass.
size_t DraftRoom::array_bytes() const {
  const BatchSizes sizes = sizes_of_rows(rows(), table_width());
  return sizes.bytes(rows()) + sizes.bytes(0);
}

CacheShape DraftRoom::caches() const {
  CacheShape shape = sizes_.caches;
  shape.pages += shape.slots * spare_pages();
  shape.window = shape.window_pages = 0;
  shape.keeps_prefixes = false;  // keys and values of kept pages stay where they are
  return shape;
}

uint64_t draft_page_bytes(const DsparkConfig& config, DType compute, const CacheShape& caches) {
  CacheShape shape = caches;
  shape.keeps_prefixes = false;
  return page_bytes(config.blocks, all_layers(config), compute, shape);
}

uint64_t draft_maker_bytes(const DsparkConfig& config, const DraftMakerSizes& sizes, DType compute) {
  const DraftRoom room(config, sizes);
  const Dspark::Room tensors = shapes_of(config, room, compute);
  const auto spare = static_cast<uint64_t>(sizes.caches.slots * room.spare_pages());
  const auto drafts = static_cast<uint64_t>(room.passes() * room.drafts() * room.texts_in_pass()) * sizeof(int32_t);
  return spare * draft_page_bytes(config, compute, sizes.caches) + tensors.residual.bytes() + tensors.logits.bytes() +
         tensors.before.bytes() + tensors.log_probs.bytes() + drafts +
         static_cast<uint64_t>(room.passes()) * room.array_bytes() +
         dspark_scratch_bytes(config, compute, sizes.tokens, room.rows());
}

DraftMaker::DraftMaker(Backend& backend, const Dspark& drafter, const DraftMakerSizes& sizes, DType compute)
    : backend_(backend),
      drafter_(drafter),
      room_(drafter.config(), sizes),
      caches_(backend, drafter.config().blocks, all_layers(drafter.config()), compute, room_.caches()),
      memory_(backend),
      scratch_bytes_(dspark_scratch_bytes(drafter.config(), compute, sizes.tokens, room_.rows())),
      scratch_(backend.allocate(scratch_bytes_)),
      tensors_(shapes_of(drafter.config(), room_, compute)),
      done_(backend.create_event()) {
  const size_t array_bytes = static_cast<size_t>(room_.passes()) * room_.array_bytes();
  transfers_.drafts = memory_.allocate(DType::kI32, {room_.passes(), room_.drafts() * room_.texts_in_pass()});
  transfers_.results = backend.allocate_host(transfers_.drafts.bytes());
  transfers_.arrays = backend.allocate(array_bytes);
  transfers_.staging = backend.allocate_host(array_bytes);
  for (Tensor* tensor : {&tensors_.residual, &tensors_.logits, &tensors_.before, &tensors_.log_probs})
    *tensor = memory_.allocate(tensor->dtype, {tensor->dim(0), tensor->dim(1)});
}

void DraftMaker::enqueue(std::span<const Text> texts, int64_t tag) {
  expect(std::ssize(texts) <= room_.sizes().texts, "DraftMaker: more texts than the plan has room for");
  const auto in_pass = static_cast<size_t>(room_.texts_in_pass());
  texts_ = texts.size();
  for (size_t first = 0; first < texts.size(); first += in_pass)
    enqueue_pass(texts.subspan(first, std::min(in_pass, texts.size() - first)), static_cast<int64_t>(first / in_pass),
                 tag);
  backend_.compute().record(*done_);
}

void DraftMaker::enqueue_pass(std::span<const Text> texts, int64_t pass, int64_t tag) {
  const DsparkConfig& config = drafter_.config();
  const int64_t page = room_.sizes().caches.page_size, spare = room_.spare_pages();
  BatchArrays own, reads;
  std::vector<int32_t> ids, pages;
  own.table_width = reads.table_width = room_.table_width();
  for (int64_t place = 0; place < config.block_size; ++place)
    for (const Text& text : texts) {
      pages.assign(text.pages.begin(), text.pages.begin() + pages_for(text.position, page));
      for (int64_t i = 0; i < spare; ++i)
        pages.push_back(static_cast<int32_t>(room_.sizes().caches.pages + text.slot * spare + i));
      own.add_cached(text.position + place, 1, pages, 0, 0);
      reads.add_cached(text.position + config.block_size - 1, 1, pages, 0, 0);
      ids.push_back(place == 0 ? text.token : config.mask_token);
    }
  const size_t offset = static_cast<size_t>(pass) * room_.array_bytes();
  std::byte *const device = transfers_.arrays.data() + offset, *const host = transfers_.staging.data() + offset;
  const std::span<std::byte> room(host, room_.array_bytes());
  const BatchTensors first = fill_arrays(own, ids, room, device);
  const BatchTensors second = fill_arrays(reads, {}, room.subspan(first.bytes), device + first.bytes);
  Dspark::Blocks blocks{.ids = first.ids, .batch = first.batch, .reads = second.batch, .texts = std::ssize(texts)};
  const int64_t longest = (reads.max_length + kDraftLengthStep - 1) / kDraftLengthStep * kDraftLengthStep;
  blocks.batch.max_length = blocks.reads.max_length = longest;

  Stream& compute = backend_.compute();
  backend_.copy(compute, device, host, first.bytes + second.bytes);
  const Tensor drafts = transfers_.drafts.at(pass).rows(0, room_.drafts() * blocks.texts);
  const auto work = [this, blocks, drafts, pass] {
    drafter_.draft(backend_.ops(), scratch_, blocks, &caches_, tensors_,
                   drafts.reshape({room_.drafts(), blocks.texts}));
    backend_.copy_to_host(transfers_.results.data() + static_cast<size_t>(pass) * transfers_.drafts.at(pass).bytes(),
                          drafts);
  };
  Recording* const recording = recording_of(blocks, pass, work);
  compute.submit(
      [work, recording] {
        if (recording != nullptr)
          recording->replay();
        else
          work();
      },
      tag);
}

// Null until the shape has occurred often enough.
Recording* DraftMaker::recording_of(const Dspark::Blocks& blocks, int64_t pass, const std::function<void()>& work) {
  const std::array<int64_t, 3> shape{pass, blocks.texts, blocks.reads.max_length};
  if (recordings_.size() >= kMaxDraftRecordings && !recordings_.contains(shape)) return nullptr;
  Recorded& recorded = recordings_[shape];
  if (++recorded.times == kDraftRecordedTime) recorded.work = backend_.record(work);
  return recorded.work.get();
}

std::vector<int32_t> DraftMaker::drafts(size_t text) const {
  const auto in_pass = static_cast<size_t>(room_.texts_in_pass());
  const size_t pass = text / in_pass, texts = std::min(in_pass, texts_ - pass * in_pass);
  const auto* const own = reinterpret_cast<const int32_t*>(transfers_.results.data()) +
                          pass * static_cast<size_t>(room_.drafts()) * in_pass;
  std::vector<int32_t> drafts;
  for (int64_t place = 0; place < room_.drafts(); ++place)
    drafts.push_back(own[static_cast<size_t>(place) * texts + text % in_pass]);
  return drafts;
}

}  // namespace lfm2
