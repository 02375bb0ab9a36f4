package examples_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spanpool/spanpool/adapters/engine"
	"github.com/spanpool/spanpool/app"
	"github.com/spanpool/spanpool/client"
	"github.com/spanpool/spanpool/inject"
)

// A program on the node's host reads an object layer group by layer group, into memory that the node has mapped too: no byte of the
// object crosses the socket. The daemon's socket is at /run/spanpool/engine.sock unless its settings say otherwise.
func Example_client() {
	socket, stop, err := serve() // in place of `spanpool serve --socket PATH`
	if err != nil {
		fmt.Println(err)
		return
	}
	defer stop()
	if err := restore(socket); err != nil {
		fmt.Println(err)
	}
	// Output:
	// stored, 4 keys
	// layers 0 to 3: hit
	// layers 4 to 7: hit
	// all bytes are back: true
}

func restore(socket string) error {
	ctx := context.Background()
	// What must not meet under one key is in the namespace; the keys stand for the prompt's four pages.
	namespace := client.Namespace{Model: "demo", Dtype: "bf16", Layout: "layers", PageSize: 4, TPSize: 1}.Fingerprint()
	keys := client.PromptKeys(namespace, []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 4)
	const layers, layer = 8, 4096 // an object is a page: all of its layers, back to back

	c, err := client.Dial(ctx, socket, client.Options{Namespace: namespace, Name: "example"})
	if err != nil {
		return err
	}
	defer c.Close()
	memory, err := c.NewMemory(ctx, uint64(len(keys))*layers*layer)
	if err != nil {
		return err
	}
	fill(memory.Bytes(), 7)
	put, err := c.PutRanges(ctx, client.PutOptions{}, client.Part{Keys: client.Keys{Names: keys}, Sizes: []uint64{layers * layer},
		Pattern: &client.Pattern{Off: []uint64{0}, Len: []uint64{layers * layer}, Region: []*client.Region{memory},
			Base: []uint64{0}, Stride: []uint64{layers * layer}, Row: []uint64{0, 1, 2, 3}}})
	if err := errors.Join(err, client.Failed(put)); err != nil {
		return err
	}
	fmt.Printf("%v, %d keys\n", client.StatusName(put.GetStatus()[0]), len(keys))

	fill(memory.Bytes(), 0)
	pages, err := c.NewHandle(keys, []uint64{3, 2, 1, 0}) // named once; page i goes to row rows[i]
	if err != nil {
		return err
	}
	for first := uint64(0); first < layers; first += 4 { // four layers at a time, into a buffer for each layer
		where := client.Pattern{Len: []uint64{layer}, Region: []*client.Region{memory}, Stride: []uint64{layer}, RowsOfHandle: true}
		for l := first; l < first+4; l++ {
			where.Off, where.Base = append(where.Off, l*layer), append(where.Base, l*uint64(len(keys))*layer)
		}
		got, err := c.GetRanges(ctx, client.Part{Keys: client.Keys{Handle: pages}, Pattern: &where})
		if err := errors.Join(err, client.Failed(got)); err != nil {
			return err
		}
		fmt.Printf("layers %d to %d: %v\n", first, first+3, client.StatusName(got.GetStatus()[0]))
	}
	back := true
	for _, b := range memory.Bytes() {
		back = back && b == 7
	}
	fmt.Println("all bytes are back:", back)
	return nil
}

func fill(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

// serve is a node of this process with a socket.
func serve() (socket string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "spanpool")
	if err != nil {
		return "", nil, err
	}
	node, stopNode, err := inject.Embedded(inject.Config{Node: app.Config{ID: "a"}, MediumBytes: 1 << 20})
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	socket = filepath.Join(dir, "engine.sock")
	server, err := engine.Listen(socket, engine.Config{Pool: node, Self: node.Self()})
	if err != nil {
		stopNode()
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve() }()
	return socket, func() {
		_ = server.Stop(context.Background()) // its clients have closed
		<-served
		stopNode()
		_ = os.RemoveAll(dir)
	}, nil
}
