(* Reads questions from the standard input and answers each with a line, by what was       *)
(* extracted from Coq. Numbers are hexadecimal; proofs/reference/questions.py writes them.    *)

let number = Z.of_string_base 16
let numbers line = List.map number (List.filter (( <> ) "") (String.split_on_char ' ' line))
let answer values = print_endline (String.concat " " (List.map (Z.format "%x") values))
let next () = input_line stdin
let for_each count act = for _ = 1 to count do act (numbers (next ())) done

let decoded = function
  | None -> print_endline "-"
  | Some (wrong, found) ->
    let marks = String.concat "" (List.map (fun is_wrong -> if is_wrong then "1" else "0") wrong) in
    print_endline (String.concat " " (marks :: List.map (Z.format "%x") found))

(* --- The tree: nodes are hashed by MD5, under a role, as the other side does --------------- *)

type word = Z.t * bool

let of_bytes text start count =
  let add byte sum = Z.logor (Z.shift_left sum 8) (Z.of_int (Char.code byte)) in
  Seq.fold_left (fun sum byte -> add byte sum) Z.zero
    (Seq.map (fun i -> text.[start + count - 1 - i]) (List.to_seq (List.init count Fun.id)))

let word_number ((seed, control) : word) = Z.logor (Z.shift_left seed 1) (if control then Z.one else Z.zero)
let word_of z : word = (Z.shift_right z 1, Z.testbit z 0)

let digest role (node : word * word) =
  let byte z i = Char.chr (Z.to_int (Z.extract z (8 * i) 8)) in
  let bytes w = String.init 8 (byte (word_number w)) in
  Digest.string (role ^ bytes (fst node) ^ bytes (snd node))

let hash right node : word * word =
  let text = digest (if right then "\001\000\000\000\000" else "\000\000\000\000\000") node in
  (word_of (of_bytes text 0 8), word_of (of_bytes text 8 8))

(* A lane is a word of the piece; in a field it is made again until it is below the order.   *)
let lanes_of order is_field size node lane =
  let piece = lane / (16 / size) and place = lane mod (16 / size) in
  let rec attempt number =
    let role = String.init 5 (fun i -> Char.chr (List.nth [ 2; piece / 256; piece mod 256; 0; number ] i)) in
    let made = of_bytes (digest role node) (place * size) size in
    if not is_field then made
    else
      let kept = Z.logand made order in
      if Z.equal kept order then attempt (number + 1) else kept
  in
  attempt 0

let tree depth lanes size order is_field codewords = function
  | [ alpha; beta; s0; s1; s2; s3 ] ->
    let second lane = lane mod (16 / size) >= 8 / size in
    let hashes right node = Obj.magic (hash right (Obj.magic node)) in
    let convert node lane = lanes_of order is_field size (Obj.magic node) lane in
    let key = Extracted.tree_key hashes convert second depth lanes (Z.to_int alpha) beta (s0, s1) (s2, s3) in
    let level (first, second) =
      let word ((w : word), differs) = [ word_number w; (if differs then Z.one else Z.zero) ] in
      word (Obj.magic first) @ word (Obj.magic second)
    in
    let share server seeds =
      List.init codewords (fun x -> Z.erem (Extracted.tree_share hashes convert second depth lanes server seeds key x) order)
    in
    let last = List.init lanes (fun lane -> Z.erem (snd key lane) order) in
    answer (List.concat_map level (fst key) @ last @ share false (s0, s1) @ share true (s2, s3))
  | _ -> failwith "a tree has six numbers"

let () =
  try
    while true do
      match String.split_on_char ' ' (next ()) with
      | [ "deal"; p; holders; count ] ->
        let deal = Extracted.modulo_deal (number p) in
        for_each (int_of_string count) (fun coefficients -> answer (deal coefficients (int_of_string holders)))
      | [ "interpolate"; p; count ] ->
        let points = numbers (next ()) in
        let rows = List.map (Extracted.modulo_weights (number p) points) (numbers (next ())) in
        let combine = Extracted.modulo_combine (number p) in
        for_each (int_of_string count) (fun values -> answer (List.map (fun row -> combine row values) rows))
      | [ "decode"; p; threshold; radius; count ] ->
        let t = int_of_string threshold in
        let points = numbers (next ()) in
        let planned = Extracted.modulo_plan (number p) t points (numbers (next ())) in
        let decode = Extracted.modulo_decode (number p) t (int_of_string radius) planned in
        for_each (int_of_string count) (fun values -> decoded (decode values))
      | [ "invert"; p; count ] ->
        for_each (int_of_string count) (fun values -> answer (List.map (Extracted.modulo_inverse (number p)) values))
      | [ "tree"; depth; lanes; size; order; field; codewords; count ] ->
        for_each (int_of_string count)
          (tree (int_of_string depth) (int_of_string lanes) (int_of_string size) (number order) (field = "1")
             (int_of_string codewords))
      | _ -> failwith "no such question"
    done
  with End_of_file -> ()
