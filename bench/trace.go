package bench

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spanpool/spanpool/domain"
)

// maxTraceLine bounds a line in memory; the longest of the published trace has 2,699 bytes.
const maxTraceLine = 1 << 20

// TraceRequest is one request of a trace.
type TraceRequest struct {
	Timestamp    int64    `json:"timestamp"` // ms from the start
	InputLength  int64    `json:"input_length"`
	OutputLength int64    `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"` // one per block of the prefix chain
}

// TraceError says which line of which file is no request, and what was expected there. Line 0 is the file itself.
type TraceError struct {
	File string
	Line int
	Err  error
}

func (e *TraceError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("trace %s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("trace %s, line %d: %v", e.File, e.Line, e.Err)
}

func (e *TraceError) Unwrap() error { return e.Err }

// OpenTrace opens a trace, which may be compressed by gzip. An error is a *TraceError.
func OpenTrace(file string) (io.ReadCloser, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, &TraceError{file, 0, err}
	}
	r := bufio.NewReader(f)
	if magic, _ := r.Peek(2); string(magic) != "\x1f\x8b" { // an error of the file comes again when it is read
		return traceFile{r, f}, nil
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		_ = f.Close() // it was only read
		return nil, &TraceError{file, 0, err}
	}
	return traceFile{z, f}, nil
}

type traceFile struct {
	io.Reader
	io.Closer
}

// ReadTrace gives the requests of a trace to each, one at a time and in order. It ends with the first error of either. file is
// what errors name.
func ReadTrace(r io.Reader, file string, each func(TraceRequest) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxTraceLine)
	n := 0
	for lines.Scan() {
		n++
		req, err := parseTraceLine(lines.Bytes())
		if cut := lines.Err(); err != nil && cut != nil {
			err = cut // why the line is no request: the file was cut off in it
		}
		if err != nil {
			return &TraceError{file, n, err}
		}
		if err := each(req); err != nil {
			return err
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return &TraceError{file, n + 1, fmt.Errorf("more than %d bytes, want one request a line", maxTraceLine)}
	case err != nil:
		return &TraceError{file, n + 1, err}
	case n == 0:
		return &TraceError{file, 1, errors.New("empty, want one request a line")}
	}
	return nil
}

// parseTraceLine reads one request: a JSON object with hash_ids. Other fields may be there.
func parseTraceLine(line []byte) (TraceRequest, error) {
	var req TraceRequest
	if line = bytes.TrimSpace(line); len(line) == 0 || line[0] != '{' {
		return req, fmt.Errorf("%.40q, want a JSON object with hash_ids", line)
	}
	if err := json.Unmarshal(line, &req); err != nil {
		return TraceRequest{}, fmt.Errorf("%w; want a JSON object with timestamp, input_length, output_length and hash_ids (numbers from 0)", err)
	}
	if n := len(req.HashIDs); n == 0 || n > domain.MaxCallKeys {
		return TraceRequest{}, fmt.Errorf("hash_ids: %d, want 1 to %d", n, domain.MaxCallKeys)
	}
	for _, f := range []struct {
		name  string
		value int64
	}{{"timestamp", req.Timestamp}, {"input_length", req.InputLength}, {"output_length", req.OutputLength}} {
		if f.value < 0 {
			return TraceRequest{}, fmt.Errorf("%s: %d, want 0 or more", f.name, f.value)
		}
	}
	return req, nil
}
