/* Compiled twins of buckram.core.storage.plain_adds: take_adds and take_v3_adds, where the rules stand.
 *
 * A run is opened when its first frame is found to be plain, and touches its record when it is closed; what that needs
 * is allocated first. `done` is what closed runs add up to: it is what the caller is told, whatever ends the loop.
 */
#include "_hot.h"

#define ACK 28
#define RECORD 24 /* of a run in an index: first, count, frames to skip, offset, length */
#define LONGEST_REPLY 64
#define ADD_HEADER 0x02010000u
#define ADD_BITS 0xFFFF0002u /* version, operation, and the flag of recovery */
#define COUNTS 5

static PyObject *s_fenced, *s_tombstone, *s_admitted, *s_limbo, *s_master_key, *s_active_index, *s_segment, *s_last,
    *s_lac, *s_bytes, *s_runs, *s_birth;

int prepare_taking(void)
{
    struct {
        PyObject **place;
        const char *text;
    } names[] = {
        {&s_fenced, "fenced"}, {&s_tombstone, "tombstone"}, {&s_admitted, "admitted"}, {&s_limbo, "limbo"},
        {&s_master_key, "master_key"}, {&s_active_index, "active_index"}, {&s_segment, "segment"}, {&s_last, "last"},
        {&s_lac, "lac"}, {&s_bytes, "bytes"}, {&s_runs, "runs"}, {&s_birth, "birth"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (*names[i].place == NULL && (*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL)
            return -1;
    return 0;
}

typedef struct {
    Py_ssize_t offset, entries, runs, replied, stored;
} Totals;

typedef struct {
    Py_buffer chunk, counts;
    const uint8_t *data;
    Py_ssize_t size, max_packet, max_run, room;
    int64_t base; /* of stored bytes, in the file */
    PyObject *segment, *ledgers, *named, *waiting, *undecided, *allowed, *replies, *frames; /* borrowed */
    Totals now, done;
} Take;

typedef struct {
    PyObject *record, *index, *runs; /* owned; NULL: no run is open */
    int64_t ledger, first, last, lac, was_lac, bytes;
    Py_ssize_t start, cap; /* of stored bytes */
    uint32_t header, length;
    int even;
    const uint8_t *key, *digits; /* of the first frame: its key, and its ledger as a varint (v3) */
    Py_ssize_t width;
    Totals first_end; /* behind the first frame */
    int64_t first_lac;
} Run;

static void forget(Run *run)
{
    Py_CLEAR(run->record);
    Py_CLEAR(run->index);
    Py_CLEAR(run->runs);
}

/* 1 or 0; -1 with an exception. */
static int is_set(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    int truth = value == Py_True ? 1 : value == Py_False ? 0 : PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

static int number_of(PyObject *object, PyObject *name, int64_t *number)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return -1;
    *number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int is_equal(PyObject *one, PyObject *other)
{
    return one == other ? 1 : PyObject_RichCompareBool(one, other, Py_EQ);
}

/* Whether nobody waits for the ledger, and neither its name nor the gate is against it; -1 with an exception. */
static int may_pass(const Take *take, PyObject *id, PyObject *record)
{
    int found;
    if (PyDict_Size(take->waiting) > 0 && (found = PyDict_Contains(take->waiting, id)) != 0)
        return found < 0 ? -1 : 0;
    if (PyDict_Size(take->undecided) > 0 && (found = PyDict_Contains(take->undecided, id)) != 0)
        return found < 0 ? -1 : 0;
    PyObject *name = PyDict_Size(take->named) > 0 ? PyDict_GetItemWithError(take->named, id) : NULL;
    if (name == NULL && PyErr_Occurred())
        return -1;
    if (name != NULL) {
        PyObject *birth = PyObject_GetAttr(record, s_birth);
        if (birth == NULL)
            return -1;
        found = is_equal(name, birth);
        Py_DECREF(birth);
        if (found != 1)
            return found;
    }
    if (take->allowed == Py_None)
        return 1;
    PyObject *right = PyDict_GetItemWithError(take->allowed, id);
    if (right == NULL)
        return PyErr_Occurred() ? -1 : 0;
    if (name != NULL)
        return is_equal(right, name);
    return PyBytes_Check(right) && PyBytes_Size(right) == 0;
}

/* Whether the record alone says that the entry is stored; -1 with an exception. */
static int is_ready(PyObject *record, const uint8_t *key, int64_t entry)
{
    int found;
    int64_t last;
    if ((found = is_set(record, s_fenced)) != 0 || (found = is_set(record, s_tombstone)) != 0 ||
        (found = is_set(record, s_limbo)) != 0)
        return found < 0 ? -1 : 0;
    if ((found = is_set(record, s_admitted)) != 1)
        return found;
    if (number_of(record, s_last, &last))
        return -1;
    if (entry <= last)
        return 0;
    PyObject *own = PyObject_GetAttr(record, s_master_key);
    if (own == NULL)
        return -1;
    char *bytes;
    Py_ssize_t size;
    found = PyBytes_AsStringAndSize(own, &bytes, &size) ? -1 : size == KEY && memcmp(bytes, key, KEY) == 0;
    Py_DECREF(own);
    return found;
}

/* Looks up where the run goes to; 1, 0 if it is not plain, -1 with an exception. */
static int find_index(const Take *take, Run *run)
{
    int64_t last;
    run->index = PyObject_GetAttr(run->record, s_active_index);
    if (run->index == NULL || run->index == Py_None)
        return run->index == NULL ? -1 : 0;
    PyObject *segment = PyObject_GetAttr(run->index, s_segment);
    if (segment == NULL)
        return -1;
    int found = is_equal(segment, take->segment);
    Py_DECREF(segment);
    if (found != 1)
        return found;
    if (number_of(run->index, s_last, &last) || number_of(run->index, s_bytes, &run->bytes) ||
        number_of(run->record, s_lac, &run->was_lac))
        return -1;
    if (run->first <= last)
        return 0;
    run->runs = PyObject_GetAttr(run->index, s_runs);
    if (run->runs == NULL)
        return -1;
    if (!PyByteArray_Check(run->runs)) {
        PyErr_SetString(PyExc_TypeError, "runs: a bytearray");
        return -1;
    }
    return 1;
}

/* Opens a run whose ledger, first entry and key are set; 1, 0 if it is not plain, -1 with an exception. */
static int open_run(const Take *take, Run *run)
{
    PyObject *id = PyLong_FromLongLong(run->ledger);
    if (id == NULL)
        return -1;
    int found = -1;
    PyObject *record = PyDict_GetItemWithError(take->ledgers, id);
    if (record == NULL)
        found = PyErr_Occurred() ? -1 : 0;
    else {
        Py_INCREF(record);
        run->record = record;
        if ((found = is_ready(record, run->key, run->first)) == 1 && (found = may_pass(take, id, record)) == 1)
            found = find_index(take, run);
    }
    Py_DECREF(id);
    if (found != 1)
        forget(run);
    return found;
}

/* Touches record and index, if a run is open; -1 with an exception, and then nothing is changed. */
static int close_run(Take *take, Run *run)
{
    if (run->record == NULL)
        return 0;
    Py_ssize_t size = take->now.stored - run->start, had = PyByteArray_Size(run->runs);
    PyObject *last = PyLong_FromLongLong(run->last), *bytes = PyLong_FromLongLong(run->bytes + size);
    PyObject *lac = run->lac > run->was_lac ? PyLong_FromLongLong(run->lac) : NULL;
    int failed = last == NULL || bytes == NULL || (run->lac > run->was_lac && lac == NULL) ||
                 PyByteArray_Resize(run->runs, had + RECORD);
    if (!failed) {
        uint8_t *at = (uint8_t *)PyByteArray_AsString(run->runs) + had;
        put_big_endian(at, (uint64_t)run->first, 8);
        put_big_endian(at + 8, (uint64_t)(run->last - run->first + 1), 4);
        put_big_endian(at + 12, run->even ? UINT32_MAX : 0, 4);
        put_big_endian(at + 16, (uint64_t)(take->base + run->start), 4);
        put_big_endian(at + 20, (uint64_t)size, 4);
        failed = PyObject_SetAttr(run->index, s_bytes, bytes) || PyObject_SetAttr(run->index, s_last, last) ||
                 PyObject_SetAttr(run->record, s_last, last) ||
                 (lac != NULL && PyObject_SetAttr(run->record, s_lac, lac));
    }
    Py_XDECREF(last);
    Py_XDECREF(bytes);
    Py_XDECREF(lac);
    forget(run);
    if (failed)
        return -1;
    take->now.runs++;
    take->done = take->now;
    return 0;
}

/* Where the next reply goes, of which `left` bytes of the chunk may bring more; NULL with an exception. */
static uint8_t *reply_place(Take *take, Py_ssize_t frame)
{
    Py_ssize_t room = PyByteArray_Size(take->replies);
    if (room - take->now.replied < LONGEST_REPLY) {
        Py_ssize_t more = ((take->size - take->now.offset) / frame + 2) * LONGEST_REPLY;
        if (more > room + 64 * LONGEST_REPLY)
            more = room + 64 * LONGEST_REPLY;
        if (PyByteArray_Resize(take->replies, room + more))
            return NULL;
    }
    return (uint8_t *)PyByteArray_AsString(take->replies) + take->now.replied;
}

static int begin(Take *take, PyObject *args, int v3)
{
    Py_ssize_t offset;
    long long base;
    memset(take, 0, sizeof *take);
    if (!PyArg_ParseTuple(args, v3 ? "y*nnnnLOO!O!O!O!OO!w*O!" : "y*nnnnLOO!O!O!O!OO!w*", &take->chunk, &offset,
                          &take->max_packet, &take->max_run, &take->room, &base, &take->segment, &PyDict_Type,
                          &take->ledgers, &PyDict_Type, &take->named, &PyDict_Type, &take->waiting, &PyDict_Type,
                          &take->undecided, &take->allowed, &PyByteArray_Type, &take->replies, &take->counts,
                          &PyByteArray_Type, &take->frames))
        return -1;
    take->data = take->chunk.buf;
    take->size = take->chunk.len;
    take->base = base;
    take->now.offset = take->done.offset = offset;
    if (take->room < 0)
        take->room = 0;
    if (offset < 0 || take->counts.len < COUNTS * 8)
        PyErr_SetString(PyExc_ValueError, "a negative offset, or too few counts");
    else if (take->allowed != Py_None && !PyDict_Check(take->allowed))
        PyErr_SetString(PyExc_TypeError, "allowed: a dictionary or None");
    else
        return 0;
    PyBuffer_Release(&take->chunk);
    PyBuffer_Release(&take->counts);
    return -1;
}

/* Tells the caller what was taken. An exception behind something that was taken comes again at the next call. */
static PyObject *finish(Take *take, Run *run)
{
    forget(run);
    const Totals *done = &take->done;
    int64_t counts[COUNTS] = {done->offset, done->entries, done->runs, done->replied, done->stored};
    memcpy(take->counts.buf, counts, sizeof counts);
    PyBuffer_Release(&take->chunk);
    PyBuffer_Release(&take->counts);
    if (PyErr_Occurred() && (done->entries > 0 || PyErr_ExceptionMatches(PyExc_MemoryError)))
        PyErr_Clear();
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* -- version 2 ------------------------------------------------------------------------------------------------------ */

static void take_frames(Take *take, Run *run)
{
    Py_ssize_t begun = take->now.offset, size = take->size;
    if (take->room < size - begun)
        size = begun + take->room;
    while (take->now.offset <= size - ENTRY - MIN_STORED) {
        Py_ssize_t offset = take->now.offset;
        const uint8_t *at = take->data + offset, *id = at + ENTRY;
        uint32_t length = (uint32_t)big_endian(at, 4), header = (uint32_t)big_endian(at + 4, 4);
        int64_t ledger = (int64_t)big_endian(id, 8), entry = (int64_t)big_endian(id + 8, 8);
        int64_t lac = (int64_t)big_endian(id + 16, 8);
        Py_ssize_t end = offset + 4 + (Py_ssize_t)length;
        int fits = length >= ENTRY - 4 + MIN_STORED && (Py_ssize_t)length <= take->max_packet;
        if (run->record != NULL && entry > 0 && entry - 1 == run->last && ledger == run->ledger &&
            header == run->header && end <= run->cap && memcmp(at + 8, run->key, KEY) == 0) {
            if (length != run->length) {
                if (!fits)
                    break;
                run->even = 0;
            }
            if (lac > run->lac)
                run->lac = lac;
        } else {
            if (end > size || (header & ADD_BITS) != ADD_HEADER || !fits || close_run(take, run))
                break;
            *run = (Run){.ledger = ledger, .first = entry, .lac = lac, .start = take->now.stored, .header = header,
                         .length = length, .even = 1, .key = at + 8};
            run->cap = take->max_run < size - offset ? offset + take->max_run : size;
            if (open_run(take, run) != 1)
                break;
        }
        uint8_t *reply = reply_place(take, end - offset);
        if (reply == NULL) {
            forget(run);
            break;
        }
        put_big_endian(reply, ACK - 4, 4);
        put_big_endian(reply + 4, ADD_HEADER, 4);
        memset(reply + 8, 0, 4);
        memcpy(reply + 12, id, 16);
        run->last = entry;
        take->now.replied += ACK;
        take->now.entries++;
        take->now.stored += end - offset;
        take->now.offset = end;
    }
    if (!PyErr_Occurred())
        (void)close_run(take, run);
}

PyObject *take_adds(PyObject *self, PyObject *args)
{
    (void)self;
    Take take;
    Run run = {0};
    if (begin(&take, args, 0))
        return NULL;
    take_frames(&take, &run);
    return finish(&take, &run);
}

/* -- version 3 ------------------------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *at;
    Py_ssize_t width;
    uint64_t number;
} Varint;

/* Where a varint ends, with its number if it has at most 63 bits; NULL if it has no end. */
static const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, Varint *found)
{
    found->at = at;
    found->number = 0;
    for (int place = 0; place < 10 && at < end; place++, at++) {
        if (place < 9)
            found->number |= (uint64_t)(*at & 127) << 7 * place;
        if (*at < 128) {
            found->width = place + 1;
            if (place == 9)
                found->number = UINT64_MAX; /* no id or length of ours */
            return at + 1;
        }
    }
    return NULL;
}

static const uint8_t *expect(const uint8_t *at, const uint8_t *end, const char *text, Py_ssize_t size)
{
    return at != NULL && end - at >= size && memcmp(at, text, (size_t)size) == 0 ? at + size : NULL;
}

static uint8_t *put_varint(uint8_t *at, uint64_t number)
{
    for (; number > 127; number >>= 7)
        *at++ = (uint8_t)(number | 128);
    *at++ = (uint8_t)number;
    return at;
}

typedef struct {
    Varint txn, message, ledger, entry, body;
    const uint8_t *key, *stored;
    Py_ssize_t size, end; /* of the stored entry; of the frame, in the chunk */
} Frame;

/* Whether a whole frame of the usual shape is at the offset. */
static int read_frame(const Take *take, Frame *frame)
{
    const uint8_t *first = take->data + take->now.offset, *end = take->data + take->size, *at = first;
    if (end - at < 6 || at[4] != '\n')
        return 0;
    Py_ssize_t length = (Py_ssize_t)big_endian(at, 4);
    if (length > take->max_packet || length > end - at - 4)
        return 0;
    if ((at = expect(at + 6, end, "\x08\x03\x10\x02\x18", 5)) == NULL ||
        (at = read_varint(at, end, &frame->txn)) == NULL || (at = expect(at, end, "\xaa\x06", 2)) == NULL ||
        (at = read_varint(at, end, &frame->message)) == NULL)
        return 0;
    const uint8_t *message = at;
    if ((at = expect(at, end, "\x08", 1)) == NULL || (at = read_varint(at, end, &frame->ledger)) == NULL ||
        (at = expect(at, end, "\x10", 1)) == NULL || (at = read_varint(at, end, &frame->entry)) == NULL ||
        (at = expect(at, end, "\x1a\x14", 2)) == NULL || end - at < KEY)
        return 0;
    frame->key = at;
    if ((at = expect(at + KEY, end, "\x22", 1)) == NULL || (at = read_varint(at, end, &frame->body)) == NULL)
        return 0;
    const uint8_t *stop = first + 4 + length;
    frame->stored = at;
    frame->size = stop - at;
    frame->end = take->now.offset + 4 + length;
    return frame->size >= MIN_STORED && first[5] == 5 + frame->txn.width &&
           frame->body.number == (uint64_t)frame->size && frame->message.number == (uint64_t)(stop - message) &&
           frame->entry.number == big_endian(at + 8, 8) && big_endian(at, 8) <= INT64_MAX;
}

/* Lays down the frame as it is stored, and its reply; -1 with an exception. */
static int lay_down(Take *take, const Frame *frame)
{
    uint8_t *reply = reply_place(take, frame->end - take->now.offset), tail[32];
    if (reply == NULL)
        return -1;
    uint8_t *at = (uint8_t *)PyByteArray_AsString(take->frames) + take->now.stored;
    put_big_endian(at, (uint64_t)frame->size + ENTRY - 4, 4);
    put_big_endian(at + 4, ADD_HEADER, 4);
    memcpy(at + 8, frame->key, KEY);
    memcpy(at + ENTRY, frame->stored, (size_t)frame->size);
    memcpy(tail, "\x08\x00\x10", 3);
    uint8_t *end = put_varint(tail + 3, big_endian(frame->stored, 8));
    *end++ = 0x18;
    end = put_varint(end, frame->entry.number);
    uint8_t *to = reply + 4;
    *to++ = '\n';
    *to++ = (uint8_t)(5 + frame->txn.width);
    memcpy(to, "\x08\x03\x10\x02\x18", 5);
    memcpy(to + 5, frame->txn.at, (size_t)frame->txn.width);
    to += 5 + frame->txn.width;
    memcpy(to, "\x10\x00\xaa\x06", 4);
    to[4] = (uint8_t)(end - tail);
    memcpy(to + 5, tail, (size_t)(end - tail));
    to += 5 + (end - tail);
    put_big_endian(reply, (uint64_t)(to - reply - 4), 4);
    take->now.replied += to - reply;
    take->now.entries++;
    take->now.stored += frame->size + ENTRY;
    take->now.offset = frame->end;
    return 0;
}

static int continues(const Take *take, const Run *run, const Frame *frame)
{
    return run->record != NULL && (int64_t)frame->entry.number - 1 == run->last &&
           take->now.stored - run->start < take->max_run && frame->ledger.width == run->width &&
           memcmp(frame->ledger.at, run->digits, (size_t)run->width) == 0 && memcmp(frame->key, run->key, KEY) == 0;
}

static void take_v3_frames(Take *take, Run *run)
{
    Frame frame;
    while (read_frame(take, &frame)) {
        int64_t ledger = (int64_t)big_endian(frame.stored, 8), lac = (int64_t)big_endian(frame.stored + 16, 8);
        int first = !continues(take, run, &frame), fits = frame.size + ENTRY <= take->room - take->now.stored;
        if (first && (!fits || frame.ledger.number != (uint64_t)ledger))
            break;
        if (!first && ledger != run->ledger)
            break;
        if (!first && !fits) { /* the rest of a run is taken as a whole, or not */
            run->last = run->first;
            run->lac = run->first_lac;
            run->even = 1;
            take->now = run->first_end;
            break;
        }
        if (first) {
            if (close_run(take, run))
                break;
            *run = (Run){.ledger = ledger, .first = (int64_t)frame.entry.number, .lac = lac, .even = 1,
                         .start = take->now.stored, .length = (uint32_t)frame.size, .key = frame.key,
                         .digits = frame.ledger.at, .width = frame.ledger.width};
            if (open_run(take, run) != 1)
                break;
        }
        if (lay_down(take, &frame)) {
            forget(run);
            break;
        }
        run->last = (int64_t)frame.entry.number;
        run->even = run->even && (uint32_t)frame.size == run->length;
        if (lac > run->lac)
            run->lac = lac;
        if (first) {
            run->first_end = take->now;
            run->first_lac = lac;
        }
    }
    if (!PyErr_Occurred())
        (void)close_run(take, run);
}

PyObject *take_v3_adds(PyObject *self, PyObject *args)
{
    (void)self;
    Take take;
    Run run = {0};
    if (begin(&take, args, 1))
        return NULL;
    if (take.room > PyByteArray_Size(take.frames))
        take.room = PyByteArray_Size(take.frames);
    take_v3_frames(&take, &run);
    return finish(&take, &run);
}
