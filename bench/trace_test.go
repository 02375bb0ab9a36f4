package bench

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const goodLine = `{"timestamp": 5, "input_length": 700, "output_length": 3, "hash_ids": [0, 18446744073709551615]}`

func TestATraceIsReadLineByLine(t *testing.T) {
	var got []TraceRequest
	err := ReadTrace(strings.NewReader(goodLine+"\n"+`{"hash_ids":[7],"more":"is ignored"}`), "t", func(r TraceRequest) error {
		got = append(got, r)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []TraceRequest{{5, 700, 3, []uint64{0, 1<<64 - 1}}, {HashIDs: []uint64{7}}}, got)
}

func TestABadTraceNamesFileLineAndWhatWasExpected(t *testing.T) {
	for line, want := range map[string]string{
		"":                                     "want a JSON object",
		"garbage":                              `"garbage", want a JSON object`,
		"[1]":                                  "want a JSON object",
		"{":                                    "want a JSON object with timestamp",
		`{"timestamp": 1}`:                     "hash_ids: 0, want 1 to 65536",
		`{"hash_ids": []}`:                     "hash_ids: 0, want 1 to 65536",
		`{"hash_ids": null}`:                   "hash_ids: 0, want 1",
		`{"hash_ids": [-1]}`:                   "numbers from 0",
		`{"hash_ids": [1.5]}`:                  "numbers from 0",
		`{"hash_ids": ["1"]}`:                  "numbers from 0",
		`{"hash_ids": [18446744073709551616]}`: "numbers from 0",
		`{"hash_ids": [1], "timestamp": -4}`:   "timestamp: -4, want 0 or more",
		`{"hash_ids": [1]} {"hash_ids": [2]}`:  "want a JSON object with timestamp",
		`{"hash_ids": [1` + strings.Repeat(",1", 65536) + `]}`: "hash_ids: 65537, want 1 to 65536",
		strings.Repeat(" ", maxTraceLine):                      "more than 1048576 bytes, want one request a line",
	} {
		n := 0
		err := ReadTrace(strings.NewReader(goodLine+"\n"+line+"\n"+goodLine+"\n"), "the-file", func(TraceRequest) error { n++; return nil })
		require.ErrorContains(t, err, "trace the-file, line 2: ", "%.60s", line)
		require.ErrorContains(t, err, want)
		require.Equal(t, 1, n)
	}
	require.EqualError(t, ReadTrace(strings.NewReader(""), "f", nil), "trace f, line 1: empty, want one request a line")
	require.ErrorContains(t, ReadTrace(io.MultiReader(strings.NewReader(goodLine+"\n"), failingReader{}), "f", func(TraceRequest) error { return nil }),
		"trace f, line 2: disk gone")
	require.ErrorContains(t, ReadTrace(io.MultiReader(strings.NewReader(goodLine+"\n"+goodLine[:30]), failingReader{}), "f", func(TraceRequest) error { return nil }),
		"trace f, line 2: disk gone", "and not that half a line is no request")
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("disk gone") }

func TestATraceEndsWithTheCallersError(t *testing.T) {
	enough := errors.New("enough")
	require.Equal(t, enough, ReadTrace(strings.NewReader(goodLine+"\ngarbage"), "f", func(TraceRequest) error { return enough }))
}

func FuzzTraceLine(f *testing.F) {
	f.Add([]byte(goodLine))
	f.Add([]byte(`{"hash_ids":[1,2,3]}`))
	f.Add([]byte("{}"))
	f.Add([]byte("\xff{"))
	f.Fuzz(func(t *testing.T, line []byte) {
		req, err := parseTraceLine(line)
		if err != nil {
			require.Zero(t, req)
			return
		}
		require.NotEmpty(t, req.HashIDs)
		require.GreaterOrEqual(t, req.Timestamp, int64(0))
	})
}

func TestATraceMayBeCompressed(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := io.WriteString(z, goodLine+"\n"+goodLine+"\n")
	require.NoError(t, err)
	require.NoError(t, z.Close())
	name := filepath.Join(t.TempDir(), "trace") // what it is called does not matter
	read := func(b []byte) (n int, err error) {
		require.NoError(t, os.WriteFile(name, b, 0o600))
		trace, err := OpenTrace(name)
		if err != nil {
			return 0, err
		}
		defer func() { require.NoError(t, trace.Close()) }()
		return n, ReadTrace(trace, name, func(TraceRequest) error { n++; return nil })
	}
	n, err := read(packed.Bytes())
	require.NoError(t, err)
	require.Equal(t, 2, n)
	n, err = read([]byte(goodLine))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	for cut := range packed.Len() {
		_, err := read(packed.Bytes()[:cut])
		require.ErrorContains(t, err, "trace "+name, "cut at %d of %d", cut, packed.Len())
	}
}
